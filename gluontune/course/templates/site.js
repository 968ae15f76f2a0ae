// Contents that fold, and search: every word must occur in a section; words of the heading weigh more.
"use strict";
(() => {
  // On a small screen the contents would push the lesson off it: they open at a touch.
  const narrow = matchMedia("(max-width: 52rem)");
  const fold = () => { document.querySelector("nav details").open = !narrow.matches; };
  narrow.addEventListener("change", fold);
  fold();
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target) target.scrollIntoView();
  const box = document.getElementById("search");
  const found = document.getElementById("found");
  const sections = window.COURSE.map((s) => ({
    ...s, inHeading: `${s.lesson} ${s.heading}`.toLowerCase(), inText: s.text.toLowerCase(),
  }));
  const score = (section, words) => {
    let total = 0;
    for (const word of words) {
      const points = (section.inHeading.includes(word) ? 5 : 0) + Math.min(4, section.inText.split(word).length - 1);
      if (points === 0) return 0;
      total += points;
    }
    return total;
  };
  const around = (section, word) => {
    const place = Math.max(0, section.inText.indexOf(word) - 60);
    return (place ? "… " : "") + section.text.slice(place, place + 180) + (section.text.length > place + 180 ? " …" : "");
  };
  const show = () => {
    const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
    found.replaceChildren();
    found.hidden = words.length === 0;
    if (found.hidden) return;
    const hits = sections.map((s) => [score(s, words), s]).filter(([n]) => n > 0).sort((a, b) => b[0] - a[0]);
    const head = document.createElement("p");
    head.textContent = hits.length ? `${hits.length} sections hold it.` : "No section holds all of these words.";
    const list = document.createElement("ol");
    for (const [, section] of hits.slice(0, 12)) {
      const item = document.createElement("li");
      const link = document.createElement("a");
      link.href = `${section.page}#${section.anchor}`;
      link.textContent = section.heading === section.lesson ? section.lesson : `${section.lesson}: ${section.heading}`;
      link.addEventListener("click", () => { box.value = ""; show(); });
      const text = document.createElement("p");
      text.textContent = around(section, words[0]);
      item.append(link, text);
      list.append(item);
    }
    found.append(head, list);
  };
  box.addEventListener("input", show);
  box.form.addEventListener("submit", (event) => event.preventDefault());
})();
// Code that is wider than its box can be scrolled with the keyboard.
for (const box of document.querySelectorAll(".highlight pre")) box.tabIndex = 0;
