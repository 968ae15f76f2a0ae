// Copies a recipe. navigator.clipboard is missing on some file:// pages: then the text is selected and
// copied the old way, and if that is refused, too, it stays selected for Ctrl+C.
document.addEventListener("click", async (event) => {
  const button = event.target.closest("button[data-copy]");
  if (!button) return;
  const source = document.getElementById(button.dataset.copy);
  const says = button.textContent;
  source.closest("details")?.setAttribute("open", "");
  let done = false;
  try {
    await navigator.clipboard.writeText(source.textContent);
    done = true;
  } catch (refused) {
    const range = document.createRange();
    range.selectNodeContents(source);
    const selection = window.getSelection();
    selection.removeAllRanges();
    selection.addRange(range);
    try { done = document.execCommand("copy"); } catch (unsupported) { done = false; }
  }
  button.textContent = done ? "Copied" : "Selected: press Ctrl+C";
  setTimeout(() => { button.textContent = says; }, 2500);
});
