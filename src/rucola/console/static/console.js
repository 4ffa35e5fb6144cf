// What JavaScript adds to the pages: times in the reader's zone, copy buttons, and Ctrl-K.
"use strict";

const short = new Intl.DateTimeFormat(document.documentElement.lang, { dateStyle: "medium", timeStyle: "medium" });
const clock = new Intl.DateTimeFormat(document.documentElement.lang, { hour: "2-digit", minute: "2-digit" });
const today = (moment) => moment.toDateString() === new Date().toDateString();

function improve(root) {
  for (const one of root.querySelectorAll("time[datetime]")) {
    one.title = one.dateTime;
    const moment = new Date(one.dateTime);
    one.textContent = ("clock" in one.dataset && today(moment) ? clock : short).format(moment);
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
