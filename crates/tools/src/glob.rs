//! Names by pattern, as of fnmatch(3) without flags in the POSIX locale: `*`, `?`, `[a-z]`, `[!a-z]`,
//! `[[:digit:]]`, `[[.-.]]`, `[[=a=]]`, and `\` before a character that stands for itself. Patterns and
//! names are bytes; `?` is one byte.

/// Whether a name matches a pattern. Takes time proportional to the product of their lengths at most.
pub fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    // Where to go on after a mismatch: the last star, and what it covers up to now.
    let mut star: Option<(usize, usize)> = None;
    loop {
        if pattern.get(p) == Some(&b'*') {
            star = Some((p + 1, n));
            p += 1;
            continue;
        }
        if n == name.len() {
            return p == pattern.len();
        }
        match one(&pattern[p..], name[n]) {
            Some(len) => (p, n) = (p + len, n + 1),
            None => match star {
                Some((after, covered)) => {
                    star = Some((after, covered + 1));
                    (p, n) = (after, covered + 1);
                }
                None => return false,
            },
        }
    }
}

/// The length of the pattern's first element, if that matches the byte.
fn one(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern {
        [] => None,
        [b'?', ..] => Some(1),
        [b'\\', literal, ..] => (*literal == byte).then_some(2),
        [b'[', rest @ ..] => match bracket(rest, byte) {
            Some((matched, len)) => matched.then_some(1 + len),
            // A bracket that is not closed stands for itself.
            None => (byte == b'[').then_some(1),
        },
        [literal, ..] => (*literal == byte).then_some(1),
    }
}

/// Whether a set contains the byte, and the set's length with its closing bracket; `None` if there is
/// none. A set that ends in a range or `\` without its second half matches nothing, as in bash.
fn bracket(rest: &[u8], byte: u8) -> Option<(bool, usize)> {
    let negated = matches!(rest.first(), Some(b'!' | b'^'));
    let start = usize::from(negated);
    let mut at = start;
    let mut found = false;
    loop {
        if rest.get(at) == Some(&b']') && at > start {
            return Some((found != negated, at + 1));
        }
        let left = rest.get(at..)?;
        if let Some((is_in, len)) = class(left, byte) {
            found |= is_in;
            at += len;
            continue;
        }
        // In the POSIX locale, only the character itself is equivalent to it.
        if let [b'[', b'=', same, b'=', b']', ..] = left {
            found |= *same == byte;
            at += 5;
            continue;
        }
        let (first, len) = match point(left)? {
            Point::At(first, len) => (Some(first), len),
            Point::Unknown(len) => (None, len),
            Point::Half => return Some((false, rest.len())),
        };
        at += len;
        let (last, len) = match rest.get(at..) {
            Some([b'-', end @ ..]) if end.first() != Some(&b']') => match point(end) {
                Some(Point::At(last, len)) => (Some(last), 1 + len),
                Some(Point::Unknown(len)) => (None, 1 + len),
                Some(Point::Half) => return Some((false, rest.len())),
                None if end.is_empty() => return Some((false, rest.len())),
                None => return None,
            },
            _ => (first, 0),
        };
        at += len;
        // A range with an unknown end contains nothing.
        if let (Some(first), Some(last)) = (first, last) {
            found |= (first..=last).contains(&byte);
        }
    }
}

/// What may begin or end a range, and how many bytes it takes in the pattern.
enum Point {
    /// A byte.
    At(u8, usize),
    /// A collating symbol that is not one byte.
    Unknown(usize),
    /// `\` at the end of the pattern.
    Half,
}

/// What `rest` begins with: `[.a.]`, `\a` or `a`; `None` if that is not closed, or nothing is left.
fn point(rest: &[u8]) -> Option<Point> {
    match rest {
        [b'[', b'.', after @ ..] => {
            // It has one byte at least, which may be `.`.
            let end = 1 + after.get(1..)?.windows(2).position(|two| two == b".]")?;
            Some(match after[..end] {
                [byte] => Point::At(byte, 5),
                _ => Point::Unknown(end + 4),
            })
        }
        [b'\\'] => Some(Point::Half),
        [b'\\', byte, ..] => Some(Point::At(*byte, 2)),
        [byte, ..] => Some(Point::At(*byte, 1)),
        [] => None,
    }
}

/// Whether the class that `rest` begins with, like `[:digit:]`, contains the byte, and the length of the
/// class; `None` if it begins with none. A class of an unknown name contains nothing.
fn class(rest: &[u8], byte: u8) -> Option<(bool, usize)> {
    let after = rest.strip_prefix(b"[:")?;
    let end = after.windows(2).position(|two| two == b":]")?;
    let is_in = match &after[..end] {
        b"alnum" => byte.is_ascii_alphanumeric(),
        b"alpha" => byte.is_ascii_alphabetic(),
        b"blank" => matches!(byte, b' ' | b'\t'),
        b"cntrl" => byte.is_ascii_control(),
        b"digit" => byte.is_ascii_digit(),
        b"graph" => byte.is_ascii_graphic(),
        b"lower" => byte.is_ascii_lowercase(),
        b"print" => byte.is_ascii_graphic() || byte == b' ',
        b"punct" => byte.is_ascii_punctuation(),
        // With the vertical tab, unlike `is_ascii_whitespace`.
        b"space" => matches!(byte, b' ' | b'\t'..=b'\r'),
        b"upper" => byte.is_ascii_uppercase(),
        b"xdigit" => byte.is_ascii_hexdigit(),
        _ => false,
    };
    Some((is_in, end + 4))
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn names_as_the_shell_matches_them() {
        for (pattern, name) in [
            ("", ""),
            ("*", ""),
            ("*", "any"),
            ("*.img", "disk.img"),
            ("a*b*c", "aXbXbYc"),
            ("?", "x"),
            ("[a-c]x", "bx"),
            ("[!a-c]x", "dx"),
            ("[]]", "]"),
            ("[a-]", "-"),
            ("[", "["),
            ("\\*", "*"),
            ("a\\", "a\\"),
            ("**", "x"),
            ("*[[:digit:]]", "disk7"),
            ("[![:digit:]_]x", "ax"),
            ("[[:alpha:]-]", "-"),
            ("[[:space:]]", "\u{b}"),
            ("[\\]]", "]"),
            ("[\\a-\\c]", "b"),
            ("[[:]", ":"),
            ("[[]", "["),
            ("[[.a.]]", "a"),
            ("[[.-.]]", "-"),
            ("[[.].]]", "]"),
            ("[[...]]", "."),
            ("[[.a.]-[.c.]]", "b"),
            ("[a-[.c.]]", "b"),
            ("[[.-.]-0]", "."),
            ("[[.ab.]x]", "x"),
            ("[![.ab.]]", "n"),
            ("[[=a=]]", "a"),
            ("[![=a=]]", "b"),
            ("[[=]=]]", "]"),
            ("[[=a=]-c]", "-"),
            ("[[=ab=]]", "a]"),
            ("[[=a]", "="),
            ("[[.a", "[[.a"),
            ("[[.a]", "[a"),
            ("[[.a.]", "[."),
            ("[[:]-[:]", "[:-:"),
            ("[a-[:digit:]]", ":]"),
            ("[[:digit:]-z]", "-"),
            ("[[:digit:]", "[:"),
            ("[a-*", "[a-zz"),
            ("[A-\\]]", "]"),
        ] {
            assert!(matches(pattern.as_bytes(), name.as_bytes()), "{pattern} {name}");
        }
        for (pattern, name) in [
            ("", "a"),
            ("?", ""),
            ("*.img", "disk.imgs"),
            ("a*b*c", "aXbXb"),
            ("[a-c]", "d"),
            ("[!a-c]", "a"),
            ("\\*", "x"),
            ("a", "A"),
            ("*[[:digit:]]", "disk"),
            ("*[[:digit:]]", "d:]"),
            ("[![:digit:]_]x", "_x"),
            ("[[:nothing:]]", "n"),
            ("[\\]]", "\\"),
            ("[[.a.]]", "."),
            ("[[.ab.]]", "a"),
            ("[+-[.ab.]]", ","),
            ("[a-[.c.]]", "]"),
            ("[[=a=]]", "="),
            ("[[=a=]-c]", "b"),
            ("[[.a.]", "a"),
            ("[[.a]", "."),
            ("[[:]-[:]", "["),
            ("[[:]-[:]", ":"),
            ("[[.ab.]-c]", "c"),
            ("[c-a]", "b"),
            ("[a-", "[a-"),
            ("x[a-", "x[a-"),
            ("[!a-", "[!a-"),
            ("[a\\", "[a\\"),
            ("[a-\\", "[a-\\"),
        ] {
            assert!(!matches(pattern.as_bytes(), name.as_bytes()), "{pattern} {name}");
        }
    }

    #[test]
    fn many_stars_take_no_exponential_time() {
        let (pattern, name) = ("*a".repeat(200) + "b", "a".repeat(2000));
        assert!(!matches(pattern.as_bytes(), name.as_bytes()));
    }
}
