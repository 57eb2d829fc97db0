"""WikiText's documents. Its files are one text each, with blank lines of one space."""
import re

# An article begins with a blank line, its title = … =, and another blank line.
ARTICLE = re.compile(r"^ \n(?= = (?!=)[^\n]*(?<!=) = \n \n)", re.MULTILINE)


def cut(part, texts):
    """The training part article by article; the others as one document, as published perplexities take them.
    From the Hub come lines, with nothing for a blank one."""
    text = texts[0] if len(texts) == 1 else "".join(line or " \n" for line in texts)
    if part != "train":
        return [text]
    begins = [match.start() for match in ARTICLE.finditer(text)]
    edges = sorted({0, *begins, len(text)})
    return [text[begin:end] for begin, end in zip(edges, edges[1:])]
