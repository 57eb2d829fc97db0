// formats.c: names files that have neither text nor token ids.
#include "data/formats.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

#define HTML "HTML; pandoc -f html -t plain FILE converts it"
#define XML "XML; WikiExtractor --json FILE converts a dump of MediaWiki to JSONL"
#define TABLE(separator) "a table; in Python, pandas.read_csv(FILE, sep='" separator "').to_json(OUT, " \
    "orient='records', lines=True) writes JSONL, to read with --text-field COLUMN"

bool check_format(const char* name, const char* head, size_t n, TostError* err) {
    static const struct { size_t at; const char *magic, *what, *way; } formats[] = {
        {0, "\x1f\x8b\x08", "compressed by gzip", "gzip -dc FILE decompresses it"},
        {0, "\xfd" "7zXZ", "compressed by xz", "xz -dc FILE decompresses it"},
        {0, "\x28\xb5\x2f\xfd", "compressed by zstd", "zstd -dc FILE decompresses it"},
        {4, "1AY&SY", "compressed by bzip2", "bzip2 -dc FILE decompresses it"},
        {0, "PK\x03\x04", "a zip archive", "unzip FILE unpacks it"},
        {257, "ustar", "a tar archive", "tar -xf FILE unpacks it"},
        {0, "%PDF-", "a PDF file", "pdftotext FILE - converts it"},
        {0, "{\\rtf", "an RTF file", "pandoc -f rtf -t plain FILE converts it"},
        {0, "PAR1\x15", "a Parquet file", "dev/data/corpus.py own --from FILE tokenizes it"},
        {0, "ARROW1", "an Arrow file", "dev/data/corpus.py own --from FOLDER tokenizes a dataset"},
        {0, "\xff\xff\xff\xff", "an Arrow file", "dev/data/corpus.py own --from FOLDER tokenizes a dataset"},
        {0, "\x93NUMPY", "a NumPy .npy file", "in NumPy, astype(np.uint16).tofile(SHARD) writes ids below 65536"},
        {0, "MMIDIDX", "the index of a Megatron dataset", "its .bin file has the ids"},
        {0, "version https://git-lfs.", "the pointer of a Git LFS file", "`git lfs pull` gets the file itself"},
    };
    for (size_t i = 0; i < countof(formats); i++) {
        const size_t len = strlen(formats[i].magic);
        if (n >= formats[i].at + len && memcmp(head + formats[i].at, formats[i].magic, len) == 0)
            return tost_error(err, "%s: %s; %s", name, formats[i].what, formats[i].way);
    }
    return true;
}

bool has_suffix(const char* name, const char* suffix) {
    const size_t n = strlen(name), len = strlen(suffix);
    return n >= len && strcasecmp(name + n - len, suffix) == 0;
}

bool check_markup(const char* name, const char* text, const char* end, TostError* err) {
    static const struct { const char *suffix, *mark, *what; } kinds[] = {   // mark: the first tag
        {".html", "<!doctype html", HTML}, {".htm", "<html", HTML}, {".xml", "<?xml", XML}, {".xml", "<mediawiki", XML},
        {".csv", "", TABLE(",")}, {".tsv", "", TABLE("\\t")},
    };
    while (text < end && isspace((uint8_t)*text)) text++;
    const bool tags = memmem(text, (size_t)(end - text), "</", 2);
    for (size_t i = 0; i < countof(kinds); i++) {
        const char* mark = kinds[i].mark;
        const size_t n = strlen(mark);
        const bool begins = n > 0 && tags && (size_t)(end - text) > n && strncasecmp(text, mark, n) == 0;
        if (begins || has_suffix(name, kinds[i].suffix))
            return tost_error(err, "%s: %s; --plain reads it as text", name, kinds[i].what);
    }
    return true;
}
