// What JavaScript adds to the pages: times in the reader's zone, copy buttons, and Ctrl-K.
"use strict";

const short = new Intl.DateTimeFormat(document.documentElement.lang, { dateStyle: "medium", timeStyle: "medium" });

function improve(root) {
  for (const one of root.querySelectorAll("time[datetime]")) {
    one.title = one.dateTime;
    one.textContent = short.format(new Date(one.dateTime));
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
