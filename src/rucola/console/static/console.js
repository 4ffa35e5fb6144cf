// What JavaScript adds to the pages: times in the reader's zone, copy buttons, and Ctrl-K.
"use strict";

const short = new Intl.DateTimeFormat(document.documentElement.lang, { dateStyle: "medium", timeStyle: "medium" });
const clock = new Intl.DateTimeFormat(document.documentElement.lang, { hour: "2-digit", minute: "2-digit" });
const two = (number) => String(Math.trunc(Math.abs(number))).padStart(2, "0");
const today = (moment) => moment.toDateString() === new Date().toDateString();

// ISO 8601 with the reader's UTC offset, as Python parses it.
function localTime(moment) {
  const east = -moment.getTimezoneOffset();
  const local = new Date(moment.getTime() + east * 60000).toISOString().slice(0, 19);
  return `${local}${east < 0 ? "-" : "+"}${two(east / 60)}:${two(east % 60)}`;
}

function improve(root) {
  for (const one of root.querySelectorAll("time[datetime]")) {
    one.title = one.dateTime;
    const moment = new Date(one.dateTime);
    one.textContent = ("clock" in one.dataset && today(moment) ? clock : short).format(moment);
  }
  for (const one of root.querySelectorAll("input[data-time]")) {
    if (one.value === one.defaultValue) one.value = localTime(new Date(one.value));
    delete one.dataset.time; // from now on the value is the reader's
  }
  for (const one of root.querySelectorAll("[data-copy]")) one.hidden = false;
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-copy]");
  if (button) navigator.clipboard.writeText(button.dataset.copy);
});

document.addEventListener("keydown", (event) => {
  if ((event.ctrlKey || event.metaKey) && event.key === "k") {
    event.preventDefault();
    document.getElementById("find").focus();
  }
});

document.addEventListener("htmx:after:swap", () => improve(document));
improve(document);
