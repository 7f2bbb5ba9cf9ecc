//! Manifests: the lines of sha256sum(1) and b3sum(1), with their escapes.
//!
//! A line is a checksum in hexadecimal, a space, a space or `*`, and a name. If the name contains a
//! backslash, a newline or a carriage return, these are escaped, and a backslash precedes the line.
//! The tagged lines of `sha256sum --tag` and `b3sum --tag` are read, too.

use super::algorithm::{Algorithm, Checksum};
use std::io::{self, BufRead};

/// The longest line that is read, in bytes: names of the longest paths, all of it escaped.
const MOST_BYTES: u64 = 16 << 10;

/// An entry of a manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The name of the file.
    pub name: Vec<u8>,
    /// Its checksum.
    pub checksum: Checksum,
    /// The algorithm, where the line names it.
    pub algorithm: Option<Algorithm>,
}

/// A name as in a manifest, and whether a backslash precedes its line.
fn escaped(name: &[u8]) -> (Vec<u8>, bool) {
    let mut text = Vec::with_capacity(name.len());
    for &byte in name {
        match byte {
            b'\\' => text.extend(b"\\\\"),
            b'\n' => text.extend(b"\\n"),
            b'\r' => text.extend(b"\\r"),
            byte => text.push(byte),
        }
    }
    let is_escaped = text.len() != name.len();
    (text, is_escaped)
}

/// The line of a file, with its newline.
pub fn line(name: &[u8], checksum: Checksum) -> Vec<u8> {
    let (name, is_escaped) = escaped(name);
    let start = if is_escaped { "\\" } else { "" };
    [format!("{start}{checksum}  ").as_bytes(), &name, b"\n"].concat()
}

/// The line that reports the check of a file, as sha256sum(1) does.
pub fn verdict(name: &[u8], verdict: &str) -> Vec<u8> {
    let (name, is_escaped) = escaped(name);
    let start: &[u8] = if is_escaped { b"\\" } else { b"" };
    [start, &name, format!(": {verdict}\n").as_bytes()].concat()
}

/// Reads the next entry of a manifest; `None` at its end, and an error for a line that is none.
/// Comments and empty lines are skipped.
///
/// # Errors
/// It cannot be read.
pub fn next(lines: &mut dyn BufRead) -> io::Result<Option<Result<Entry, Malformed>>> {
    loop {
        let mut line = Vec::new();
        let len = io::Read::take(&mut *lines, MOST_BYTES).read_until(b'\n', &mut line)?;
        if len == 0 {
            return Ok(None);
        }
        let has_end = line.pop_if(|last| *last == b'\n').is_some();
        if !has_end && len as u64 == MOST_BYTES {
            skip_line(lines)?;
            return Ok(Some(Err(Malformed)));
        }
        // As of a manifest that was edited on Windows.
        line.pop_if(|last| *last == b'\r');
        if !line.is_empty() && line[0] != b'#' {
            return Ok(Some(parse(&line).ok_or(Malformed)));
        }
    }
}

/// A line is no entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

fn skip_line(lines: &mut dyn BufRead) -> io::Result<()> {
    loop {
        let ahead = lines.fill_buf()?;
        let end = ahead.iter().position(|&byte| byte == b'\n');
        let len = end.map_or(ahead.len(), |end| end + 1);
        lines.consume(len);
        if len == 0 || end.is_some() {
            return Ok(());
        }
    }
}

fn parse(line: &[u8]) -> Option<Entry> {
    let (line, is_escaped) = match line.strip_prefix(b"\\") {
        Some(line) => (line, true),
        None => (line, false),
    };
    let (name, hex, algorithm) = tagged(line).or_else(|| plain(line))?;
    let name = if is_escaped { unescape(name)? } else { name.to_vec() };
    let is_name = !name.is_empty() && !name.contains(&0);
    is_name.then_some(Entry { name, checksum: checksum(hex)?, algorithm })
}

type Parts<'a> = (&'a [u8], &'a [u8], Option<Algorithm>);

/// `SUM  NAME` or `SUM *NAME`.
fn plain(line: &[u8]) -> Option<Parts<'_>> {
    let (hex, rest) = line.split_at_checked(64)?;
    let name = rest.strip_prefix(b"  ").or_else(|| rest.strip_prefix(b" *"))?;
    Some((name, hex, None))
}

/// `SHA256 (NAME) = SUM`.
fn tagged(line: &[u8]) -> Option<Parts<'_>> {
    let (rest, algorithm) = match line.strip_prefix(b"SHA256 (") {
        Some(rest) => (rest, Algorithm::Sha256),
        None => (line.strip_prefix(b"BLAKE3 (")?, Algorithm::Blake3),
    };
    let (rest, hex) = rest.split_at_checked(rest.len().checked_sub(64)?)?;
    Some((rest.strip_suffix(b") = ")?, hex, Some(algorithm)))
}

fn unescape(name: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = name.iter();
    let mut text = Vec::with_capacity(name.len());
    while let Some(&byte) = bytes.next() {
        text.push(match byte {
            b'\\' => match bytes.next()? {
                b'\\' => b'\\',
                b'n' => b'\n',
                b'r' => b'\r',
                _ => return None,
            },
            byte => byte,
        });
    }
    Some(text)
}

fn checksum(hex: &[u8]) -> Option<Checksum> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let mut sum = [0; 32];
    if hex.len() != 2 * sum.len() {
        return None;
    }
    for (byte, pair) in sum.iter_mut().zip(hex.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(Checksum(sum))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUM: Checksum = Checksum([0xAB; 32]);

    fn all(mut text: &[u8]) -> Vec<Result<Entry, Malformed>> {
        std::iter::from_fn(|| next(&mut text).unwrap()).collect()
    }

    #[test]
    fn lines_are_read_back_with_any_name() {
        for name in [&b"a b"[..], b"*x", b"new\nline", b"back\\slash\\n", b"\r", b"\xff\xfe", b" "]
        {
            let entry = Entry { name: name.to_vec(), checksum: SUM, algorithm: None };
            assert_eq!(all(&line(name, SUM)), [Ok(entry)], "{name:?}");
        }
        assert_eq!(line(b"a\nb\\", SUM), format!("\\{SUM}  a\\nb\\\\\n").as_bytes());
        assert_eq!(verdict(b"a\nb", "OK"), b"\\a\\nb: OK\n");
    }

    #[test]
    fn the_forms_of_other_programs_are_read() {
        let upper = SUM.to_string().to_uppercase();
        for (text, name, algorithm) in [
            (format!("{SUM} *binary"), &b"binary"[..], None),
            (format!("# comment\n\n{upper}  x\r\n"), b"x", None),
            (format!("SHA256 (a) = b) = {SUM}"), b"a) = b", Some(Algorithm::Sha256)),
            (format!("\\BLAKE3 (a\\nb) = {SUM}\n"), b"a\nb", Some(Algorithm::Blake3)),
        ] {
            let entry = Entry { name: name.to_vec(), checksum: SUM, algorithm };
            assert_eq!(all(text.as_bytes()), [Ok(entry)], "{text}");
        }
    }

    #[test]
    fn lines_that_are_no_entries_are_malformed() {
        let long = "x".repeat(100_000);
        for text in [
            "word".to_owned(),
            format!("{SUM}  "),
            format!("{SUM} name"),
            format!("{}  short", &SUM.to_string()[1..]),
            format!("{}x  digit", &SUM.to_string()[1..]),
            format!("\\{SUM}  bad\\escape"),
            format!("\\{SUM}  cut\\"),
            format!("{SUM}  nul\0"),
            format!("MD5 (a) = {SUM}"),
            format!("{SUM}  {long}"),
        ] {
            let text = format!("{text}\n{SUM}  next");
            let found = all(text.as_bytes());
            assert_eq!(found.len(), 2, "{text:.100}");
            assert!(found[0].is_err() && found[1].is_ok(), "{text:.100}");
        }
    }
}
