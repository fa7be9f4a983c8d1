// What makes elements. All text comes into the document as text, never as markup: what a
// program or a file name says can do nothing here.

// element makes an element. Names that begin with "on" are listeners, "class" and "text"
// are what they say, and everything else is an attribute. False and null leave it out.
export function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (value === false || value == null) continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key === "text") made.textContent = value;
    else if (key === "class") made.className = value;
    else made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child != null));
  return made;
}

// setText changes a text only if it is another one, so that screen readers and the
// selection are left alone.
export function setText(target, text) {
  if (target.textContent !== text) target.textContent = text;
}

// setAttribute does the same for an attribute; null removes it.
export function setAttribute(target, name, value) {
  if (value == null) target.removeAttribute(name);
  else if (target.getAttribute(name) !== String(value)) target.setAttribute(name, value);
}

// arrange makes children the children of a parent, in this order, and moves no element
// that is in its place already.
export function arrange(parent, children) {
  let place = parent.firstChild;
  for (const child of children) {
    if (child === place) place = place.nextSibling;
    else parent.insertBefore(child, place);
  }
  while (place) {
    const next = place.nextSibling;
    place.remove();
    place = next;
  }
}

// button makes a button.
export function button(text, onclick, properties = {}) {
  return element("button", { type: "button", text, onclick, ...properties });
}
