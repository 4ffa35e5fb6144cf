// Live rows of a table over one connection, newest first; the oldest leave, and so does what comes while it is stopped.
"use strict";

const MAX_ROWS = 200;
const state = document.querySelector("[data-tail]");
const button = document.getElementById("stop");
const rows = document.getElementById("tail");
let source = null;
let last = state.dataset.after;

function say(name) {
  state.dataset.state = name;
  state.textContent = state.dataset[name];
}

function go() {
  source = new EventSource(`${state.dataset.tail}&after=${last}`);
  source.onopen = () => say("live");
  source.onerror = () => say(source.readyState === EventSource.CLOSED ? "ended" : "lost");
  source.onmessage = (event) => {
    last = event.lastEventId;
    const found = document.createElement("template");
    found.innerHTML = event.data; // escaped by the server
    improve(found.content);
    rows.prepend(...found.content.children);
    while (rows.children.length > MAX_ROWS) rows.lastElementChild.remove();
  };
  source.addEventListener("failures", (event) => {
    document.getElementById("failures").innerHTML = event.data; // escaped as well
  });
  button.textContent = button.dataset.stop;
}

button.addEventListener("click", () => {
  if (source === null) return go();
  source.close();
  source = null;
  button.textContent = button.dataset.go;
  say("stopped");
});
addEventListener("pagehide", () => source && source.close());
button.hidden = false;
go();
