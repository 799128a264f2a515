// The colours chosen at an earlier visit, before the first paint. A classic script, because modules wait for the document.
try {
  const theme = localStorage.getItem("adlro-theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // Storage may be forbidden: then the system's colours hold.
}
