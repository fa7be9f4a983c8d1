// What the address says the page shows. At a gateway that is the list of machines, or one of
// them; at a server it is the server itself. The address can be a bookmark.

const here = () => new URLSearchParams(location.search);

export const isGateway = document.querySelector('meta[name="kind"]').content === "gateway";

// server is what answers this page, in words.
export const server = isGateway ? "the gateway" : "the server";

// machine is the name of the machine that is shown, or null.
export const machine = isGateway ? named(here().get("machine")) : null;

// peer is what the protocol is spoken with, in words.
export const peer = machine ? "the machine" : "the server";

function named(name) {
  return /^[\w-]{1,64}$/.test(name ?? "") ? name : null;
}

// labels returns the labels that machines in the list must have.
export const labels = () => here().getAll("label");

// address returns the address of a machine, or of the list, from which one comes back to a
// list with the same labels.
export function address(machine, withLabels = labels()) {
  const query = new URLSearchParams(withLabels.map((label) => ["label", label]));
  if (machine) query.set("machine", machine);
  return query.size > 0 ? "?" + query : location.pathname;
}
