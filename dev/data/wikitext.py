"""Splits WikiText into documents. Each of its files is one text, in which a blank line contains one space."""
import re

# An article starts with a blank line, its title = … =, and another blank line.
ARTICLE = re.compile(r"^ \n(?= = (?!=)[^\n]*(?<!=) = \n \n)", re.MULTILINE)


def to_documents(split, texts):
    """Train: one document per article. Other splits: a single document, since published perplexities are computed
    over the whole text. On the Hub each row is one line, and a blank line is an empty string."""
    text = texts[0] if len(texts) == 1 else "".join(line or " \n" for line in texts)
    if split != "train":
        return [text]
    edges = sorted({0, *(match.start() for match in ARTICLE.finditer(text)), len(text)})
    return [text[begin:end] for begin, end in zip(edges, edges[1:])]
