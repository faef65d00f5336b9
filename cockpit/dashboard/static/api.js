// Talking to the server. Addresses are relative, so that the page also works behind a proxy.

const PATIENCE = 35000;

async function ask(address, options = {}) {
  const response = await fetch(address, { ...options, signal: AbortSignal.timeout(PATIENCE) });
  if (response.status === 401) {
    location.assign("login");
    throw new Error("This page asks for its token first.");
  }
  const answer = await response.json().catch(() => ({}));
  if (!response.ok) throw new Error(answer.error ?? `The server answered ${response.status}.`);
  return answer;
}

const named = (name) => `run=${encodeURIComponent(name)}`;

export const api = {
  runs: () => ask("api/runs"),
  board: (runs) => ask(`api/board?${runs.map(named).join("&")}`),
  findings: (run) => ask(`api/findings?${named(run)}`),
  settings: (run) => ask(`api/settings?${named(run)}`),
  panels: (query) =>
    ask("api/panels", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(query),
    }),
  dataAddress: (run, format, quantity) =>
    `api/data?${named(run)}&format=${format}` +
    (quantity ? `&quantity=${encodeURIComponent(quantity)}` : ""),
};
