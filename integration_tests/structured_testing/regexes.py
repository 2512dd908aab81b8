"""Twenty regular expressions that mean the same to Python, and a text of each."""

REGEXES = {
    "literal": (r"hello", "hello"),
    "class": (r"[a-f0-9]+", "c0ffee"),
    "counted": (r"[0-9]{3}-[0-9]{4}", "555-1234"),
    "counted from to": (r"a{2,4}b{0,2}", "aaab"),
    "at least": (r"x{3,}", "xxxx"),
    "alternatives": (r"cat|dog|bird", "dog"),
    "alternatives that begin alike": (r"a|ab|abc|abcd", "abc"),
    "nested groups": (r"((a|b)(c|d))+e", "acbde"),
    "optional": (r"colou?rs?", "colours"),
    "star of a group": (r"(ab)*c", "ababc"),
    "digits and words": (r"\d{1,3} \w+", "12 words"),
    "white space": (r"[a-z]+[ \t\n][a-z]+", "two\twords"),
    "negated class": (r"[^a-z]{2,5}!", "A9!"),
    "escapes": (r"\(\[\{\.\*\+\?\\\}\]\)", "([{.*+?\\}])"),
    "unicode": (r"[äöü]+ß?", "öß"),
    "date": (r"(19|20)[0-9]{2}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])", "2024-02-29"),
    "address": (r"[a-z0-9_]+@[a-z]+(\.[a-z]{2,3}){1,2}", "me@here.org"),
    "version": (r"v?[0-9]+\.[0-9]+(\.[0-9]+)?(-(alpha|beta|rc)[0-9]*)?", "v1.2.3-rc1"),
    "anchored": (r"^[A-Z][a-z]{0,9}$", "Name"),
    "quoted": (r"'[^'\n]{0,8}'", "'a b'"),
}
