// Tokens are 16-digit numbers. People see their rank among all that were seen: 1, 2, 3. One that arrives late renumbers those after it.

const seen = []; // BigInt, rising

/** chip returns an element with the token's rank; it is renumbered when it must be. */
export function chip(token) {
  const b = document.createElement("b");
  b.className = "token";
  b.dataset.token = token;
  b.title = `token ${token}`;
  note(token);
  b.textContent = rank(token);
  return b;
}

export function rank(token) { return 1 + seen.findIndex((t) => t === BigInt(token)); }

function note(token) {
  const t = BigInt(token);
  if (seen.includes(t)) return;
  const last = seen.at(-1);
  seen.push(t);
  if (last === undefined || last < t) return;
  seen.sort((x, y) => (x < y ? -1 : 1));
  for (const b of document.querySelectorAll(".token")) b.textContent = rank(b.dataset.token);
}

/** sentence puts text with {token} and {stored} in it into an element. */
export function sentence(element, text, record) {
  element.replaceChildren(...text.split(/(\{token\}|\{stored\})/).map((part) => {
    if (part === "{token}") return chip(record.token);
    if (part === "{stored}") return chip(record.stored);
    return part;
  }));
}
