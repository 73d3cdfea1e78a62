/* Order of search results: titles that have the words of the query first, then pages to learn from, and last those
   that record decisions and measurements. The other values are those of Sphinx. */
var Scorer = {
  score: ([page, title, _anchor, _description, score]) => {
    const query = new URLSearchParams(window.location.search).get("q") || "";
    const words = query.toLowerCase().split(/\s+/).filter((word) => word);
    const found = words.filter((word) => title.toLowerCase().includes(word)).length;
    const records = /^(decisions\/|accuracy$|papers$|benchmarks$)/.test(page);
    return score + (words.length ? (10 * found) / words.length : 0) - (records ? 20 : 0);
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
