// Chinese is searched for as it is typed, while the index has words: in it "空闲GPU" is two, and so is "最空闲".
const ask = Worker.prototype.postMessage;
Worker.prototype.postMessage = function (message, ...further) {
  const isQuery = message && message.type === 2 && typeof message.data === "string"; // the theme's, to its worker
  return ask.call(this, isQuery ? { ...message, data: inWords(message.data) } : message, ...further);
};

function inWords(query) {
  const apart = query.replace(/\w(?=\p{sc=Han})|\p{sc=Han}(?=\w)/gu, "$& ");
  // The index leaves some words out, and the theme then looks no further: what follows them is searched for as well.
  return apart.replace(/[最更很不没被小](?=(\p{sc=Han}{2,}))/gu, " $1 $&");
}
