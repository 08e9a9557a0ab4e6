// The search index holds words, but the theme searches for Chinese text as it is typed. Split the query into words: in
// the index "空闲GPU" is two words, and so is "最空闲".
const ask = Worker.prototype.postMessage;
Worker.prototype.postMessage = function (message, ...further) {
  const isQuery = message && message.type === 2 && typeof message.data === "string"; // sent by the theme
  return ask.call(this, isQuery ? { ...message, data: inWords(message.data) } : message, ...further);
};

function inWords(query) {
  const apart = query.replace(/\w(?=\p{sc=Han})|\p{sc=Han}(?=\w)/gu, "$& ");
  // The index omits some one-character words, and the theme finds nothing for them. Also search for the text after
  // such a character.
  return apart.replace(/[最更很不没被小](?=(\p{sc=Han}{2,}))/gu, " $1 $&");
}
