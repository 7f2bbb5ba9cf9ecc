//! Names by pattern, as of fnmatch(3) without flags: `*`, `?`, `[a-z]`, `[!a-z]`, and `\` before a
//! character that stands for itself. Patterns and names are bytes; `?` is one byte.

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
/// none.
fn bracket(rest: &[u8], byte: u8) -> Option<(bool, usize)> {
    let negated = matches!(rest.first(), Some(b'!' | b'^'));
    let start = usize::from(negated);
    let mut at = start;
    let mut found = false;
    loop {
        match rest.get(at)? {
            b']' if at > start => return Some((found != negated, at + 1)),
            first => {
                let (first, last, len) = match rest.get(at + 1..at + 3) {
                    Some([b'-', last]) if *last != b']' => (*first, *last, 3),
                    _ => (*first, *first, 1),
                };
                found |= (first..=last).contains(&byte);
                at += len;
            }
        }
    }
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
