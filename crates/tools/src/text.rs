//! Names, sizes and types of files as text.

use weir_vfs::FileKind;

/// A name for a terminal or a table: escapes control characters and bytes that are not UTF-8, so
/// that no file name can move the cursor.
pub fn shown(name: &[u8]) -> String {
    let mut text = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' => text.push_str("\\\\"),
                c if c.is_control() => text.extend(c.escape_default()),
                c => text.push(c),
            }
        }
        text.extend(chunk.invalid().iter().map(|b| format!("\\x{b:02x}")));
    }
    text
}

/// A size for users: `1.50 GiB`.
pub fn size_text(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut number = bytes as f64 / 1024.0;
    let mut units = UNITS.iter();
    let mut unit = units.next();
    while number >= 1024.0
        && let Some(larger) = units.next()
    {
        number /= 1024.0;
        unit = Some(larger);
    }
    format!("{number:.2} {}", unit.unwrap_or(&"B"))
}

/// A type of file in a word or two.
pub fn kind_name(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Regular => "regular file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symbolic link",
        FileKind::Block => "block device",
        FileKind::Char => "character device",
        FileKind::Fifo => "named pipe",
        FileKind::Socket => "socket",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_move_the_cursor() {
        assert_eq!(shown("caf\u{e9}".as_bytes()), "caf\u{e9}");
        assert_eq!(shown(b"a\x1b[2J\n\xff\\"), "a\\u{1b}[2J\\n\\xff\\\\");
    }

    #[test]
    fn sizes_have_two_digits_and_the_largest_unit() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.00 KiB"),
            (3 << 29, "1.50 GiB"),
            ((1 << 20) - 1, "1024.00 KiB"),
            (u64::MAX, "16.00 EiB"),
        ] {
            assert_eq!(size_text(bytes), text);
        }
    }
}
