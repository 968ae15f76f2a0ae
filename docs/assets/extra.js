// Each block's copy button stands in a landmark; a name of its own tells them apart.
const nameCopyButtons = () => document.querySelectorAll(".md-code__nav").forEach(
  (nav, number) => nav.setAttribute("aria-label", `Code ${number + 1}`));
new MutationObserver(nameCopyButtons).observe(document.documentElement, {childList: true, subtree: true});
// A table that is wider than the page scrolls by the keyboard, too.
const focusWideTables = () => document.querySelectorAll(".md-typeset__scrollwrap").forEach(
  (wrap) => { if (wrap.scrollWidth > wrap.clientWidth) wrap.tabIndex = 0; });
addEventListener("load", focusWideTables);
addEventListener("resize", focusWideTables);
// The theme's search is a dialog without a name.
document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
