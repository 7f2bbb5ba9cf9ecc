//! Formats attributes, names, times and sizes as text and as JSON.

use crate::closing::close;
use crate::ended::Ended;
use crate::system_log::Messages;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde::{Serialize, Serializer};
use serde_json::Value;
use serde_json::ser::{CompactFormatter, Formatter, PrettyFormatter};
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;
use weir_tools::failure::{Asked, Failure, Result};
use weir_tools::text::kind_name;
use weir_vfs::{Attr, FileKind};

/// A file's attributes as JSON.
#[derive(Serialize)]
pub(crate) struct FileJson {
    /// The path of the file.
    pub(crate) path: String,
    /// The bytes of `path` in hexadecimal, where they are not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) path_hex: Option<String>,
    kind: &'static str,
    size_bytes: u64,
    allocated_bytes: u64,
    mode: String,
    nlink: u32,
    uid: u32,
    gid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    rdev: Option<(u32, u32)>,
    ino: u64,
    generation: u64,
    fsid: u64,
    change: u64,
    atime: String,
    mtime: String,
    ctime: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    btime: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
    /// The bytes of `target` in hexadecimal, where they are not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    target_hex: Option<String>,
}

impl FileJson {
    /// The attributes of the file found at `path`; `target` is a symbolic link's.
    pub(crate) fn new(path: &[u8], attr: &Attr, target: Option<&[u8]>) -> Self {
        let device = matches!(attr.kind, FileKind::Block | FileKind::Char);
        let (path, path_hex) = text_and_hex(path);
        let (target, target_hex) = target.map(text_and_hex).unzip();
        Self {
            path,
            path_hex,
            kind: kind_name(attr.kind),
            size_bytes: attr.size,
            allocated_bytes: attr.allocated,
            mode: format!("{:04o}", attr.mode),
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            rdev: device.then_some(attr.rdev),
            ino: attr.id.ino,
            generation: attr.id.generation,
            fsid: attr.fsid,
            change: attr.change,
            atime: utc(attr.atime),
            mtime: utc(attr.mtime),
            ctime: utc(attr.ctime),
            btime: attr.btime.map(utc),
            target,
            target_hex: target_hex.flatten(),
        }
    }
}

/// Bytes as text, and in hexadecimal if they are not UTF-8.
pub(crate) fn text_and_hex(bytes: &[u8]) -> (String, Option<String>) {
    let lossy = std::str::from_utf8(bytes).is_err();
    (String::from_utf8_lossy(bytes).into_owned(), lossy.then(|| hex(bytes)))
}

/// Bytes in hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// A value without the fields that are `null`: they do not apply.
pub(crate) fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields = fields.into_iter().filter(|(_, value)| !value.is_null());
            fields.map(|(name, value)| (name, without_nulls(value))).collect()
        }
        Value::Array(values) => values.into_iter().map(without_nulls).collect(),
        value => value,
    }
}

/// Prints a value as JSON, with integers beyond 2^53 as strings because most readers would round them.
pub(crate) fn print_json(value: &impl Serialize) -> Result<Ended> {
    let text = json(value).map_err(io::Error::from);
    let mut text = text.asked(|| "write JSON".into())?;
    text.push(b'\n');
    print(&text)
}

/// Prints a value as one line of JSON, with integers as [`print_json`] writes them. Returns whether
/// standard output is still open.
pub(crate) fn print_json_line(value: &impl Serialize) -> Result<bool> {
    let text = json_with(value, CompactFormatter).map_err(io::Error::from);
    let mut text = text.asked(|| "write JSON".into())?;
    text.push(b'\n');
    print_while_open(&text)
}

fn json(value: &impl Serialize) -> serde_json::Result<Vec<u8>> {
    json_with(value, PrettyFormatter::new())
}

fn json_with(value: &impl Serialize, format: impl Formatter) -> serde_json::Result<Vec<u8>> {
    let mut text = Vec::new();
    value.serialize(&mut serde_json::Serializer::with_formatter(&mut text, Exact(format)))?;
    Ok(text)
}

/// The largest integer such that a double represents all up to it exactly (RFC 8259, section 6).
const MOST_EXACT: u64 = 1 << 53;

/// JSON whose integers every reader reads exactly.
struct Exact<F>(F);

macro_rules! as_before {
    ($($name:ident ( $($arg:ident : $type:ty),* );)*) => {
        $(fn $name<W: ?Sized + Write>(&mut self, out: &mut W $(, $arg: $type)*) -> io::Result<()> {
            self.0.$name(out $(, $arg)*)
        })*
    };
}

impl<F: Formatter> Formatter for Exact<F> {
    fn write_u64<W: ?Sized + Write>(&mut self, out: &mut W, value: u64) -> io::Result<()> {
        match value <= MOST_EXACT {
            true => write!(out, "{value}"),
            false => write!(out, "\"{value}\""),
        }
    }

    fn write_i64<W: ?Sized + Write>(&mut self, out: &mut W, value: i64) -> io::Result<()> {
        match value.unsigned_abs() <= MOST_EXACT {
            true => write!(out, "{value}"),
            false => write!(out, "\"{value}\""),
        }
    }

    as_before! {
        begin_array(); end_array(); begin_array_value(first: bool); end_array_value();
        begin_object(); end_object(); begin_object_key(first: bool); begin_object_value();
        end_object_value();
    }
}

/// Serializes a sum that may exceed 64 bits, in the same way as [`print_json`] does other integers.
pub(crate) fn number<S: Serializer>(number: &u128, serializer: S) -> Result<S::Ok, S::Error> {
    match u64::try_from(*number) {
        Ok(number) => serializer.serialize_u64(number),
        Err(_) => serializer.serialize_str(&number.to_string()),
    }
}

/// Writes a line to standard error. A line that cannot be written (a closed pipe, a full disk) is
/// lost: the command continues, and its exit code reports the result.
pub(crate) fn say(line: impl fmt::Display) {
    // One write, so that the lines of several threads and processes stay whole.
    let _ = Messages.write_all(format!("{line}\n").as_bytes());
}

/// Writes a failure to standard error.
pub(crate) fn complain(failure: &Failure) {
    say(format_args!("weir: {failure}"));
}

/// Asks a question on standard error, and reads the answer from standard input. Anything but an answer
/// that begins with `y` means no.
pub(crate) fn confirm(question: &str) -> bool {
    // The rest of an answer that is too long must not answer the questions after it.
    static TOO_LONG: AtomicBool = AtomicBool::new(false);
    let _ = io::stderr().lock().write_all(format!("weir: {question} ").as_bytes());
    if TOO_LONG.load(Ordering::Relaxed) {
        return false;
    }
    let answer = is_yes(io::stdin().lock());
    TOO_LONG.store(answer.is_none(), Ordering::Relaxed);
    answer == Some(true)
}

/// Longest answer in bytes. What is longer is no answer.
const LONGEST_ANSWER: u64 = 4096;

/// Whether the next line begins with `y`; `None` if it is too long.
fn is_yes(input: impl BufRead) -> Option<bool> {
    let mut answer = Vec::new();
    let read = input.take(LONGEST_ANSWER).read_until(b'\n', &mut answer);
    let is_whole = answer.ends_with(b"\n") || (answer.len() as u64) < LONGEST_ANSWER;
    let begins = matches!(answer.trim_ascii_start(), [b'y' | b'Y', ..]);
    is_whole.then_some(read.is_ok() && begins)
}

/// Writes to standard output. A closed pipe (`| head`) is no failure.
pub(crate) fn print(bytes: &[u8]) -> Result<Ended> {
    print_while_open(bytes).map(|_| Ended::Done)
}

/// Writes to standard output; returns whether it is still open.
fn print_while_open(bytes: &[u8]) -> Result<bool> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        written => written.map(|()| true).asked(|| "write to standard output".into()),
    }
}

/// Lines on standard output about work that goes on without them. Clones share a failure.
#[derive(Clone, Default)]
pub(crate) struct Lines(Arc<OnceLock<Failure>>);

impl Lines {
    /// Prints a line, unless an earlier one could not be written.
    pub(crate) fn print(&self, line: impl fmt::Display) {
        if self.0.get().is_none()
            && let Err(failure) = print(format!("{line}\n").as_bytes())
        {
            // The first failure counts.
            let _ = self.0.set(failure);
        }
    }

    /// How a command ended whose work ended like this. Reports the line that could not be written.
    pub(crate) fn end(&self, ended: Ended) -> Ended {
        let Some(failure) = self.0.get() else { return ended };
        complain(failure);
        match ended {
            Ended::Done => Ended::Failed,
            ended => ended,
        }
    }
}

/// Writes a file, and has its file system report what it could not write.
pub(crate) fn write_file(path: &Path, bytes: impl AsRef<[u8]>) -> Result<()> {
    let write = || {
        let mut file = File::create(path)?;
        file.write_all(bytes.as_ref())?;
        close(file)
    };
    write().asked(|| format!("write {}", path.display()))
}

/// Has the file system of standard output report what it could not write: NFS and FUSE may do so only when a
/// descriptor is closed.
pub(crate) fn end_output() -> Result<()> {
    let end = || {
        let mut out = io::stdout().lock();
        out.flush()?;
        close(out.as_fd().try_clone_to_owned()?)
    };
    match end() {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        ended => ended.asked(|| "write to standard output".into()),
    }
}

/// Type and permissions as `ls -l` shows them: `-rwxr-xr-x`.
pub(crate) fn mode_text(kind: FileKind, mode: u32) -> String {
    let mut text = String::with_capacity(10);
    text.push(match kind {
        FileKind::Regular => '-',
        FileKind::Directory => 'd',
        FileKind::Symlink => 'l',
        FileKind::Block => 'b',
        FileKind::Char => 'c',
        FileKind::Fifo => 'p',
        FileKind::Socket => 's',
    });
    for (shift, special, letter) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits = mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (bits & 1 != 0, mode & special != 0) {
            (true, true) => letter,
            (false, true) => letter.to_ascii_uppercase(),
            (true, false) => 'x',
            (false, false) => '-',
        });
    }
    text
}

/// A time in this machine's time zone: `2026-11-21 02:05:17`, or to the minute.
pub(crate) fn local_time(time: SystemTime, seconds: bool) -> String {
    let format = if seconds { "%Y-%m-%d %H:%M:%S%.f %z" } else { "%Y-%m-%d %H:%M" };
    match Timestamp::try_from(time) {
        Ok(time) => time.to_zoned(TimeZone::system()).strftime(format).to_string(),
        Err(_) => "?".into(),
    }
}

pub(crate) fn utc(time: SystemTime) -> String {
    Timestamp::try_from(time).map_or_else(|_| "?".into(), |t| t.to_string())
}

/// This process's umask.
pub(crate) fn umask() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    mask.and_then(|mask| u32::from_str_radix(mask.trim(), 8).ok()).unwrap_or(0o022)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_as_ls_shows_them() {
        assert_eq!(mode_text(FileKind::Regular, 0o644), "-rw-r--r--");
        assert_eq!(mode_text(FileKind::Directory, 0o1777), "drwxrwxrwt");
        assert_eq!(mode_text(FileKind::Regular, 0o6754), "-rwsr-sr--");
        assert_eq!(mode_text(FileKind::Fifo, 0o7000), "p--S--S--T");
    }

    #[test]
    fn only_a_line_that_begins_with_y_is_a_yes() {
        let mut input = &b"yes\n  Y\nno\n\n\xff\ny"[..];
        let answers: Vec<bool> = (0..7).map(|_| is_yes(&mut input).unwrap()).collect();
        assert_eq!(answers, [true, true, false, false, false, true, false]);
        let mut endless = io::BufReader::new(io::repeat(b'y'));
        assert_eq!(is_yes(&mut endless), None);
    }

    #[test]
    fn json_keeps_every_digit() {
        #[derive(Serialize)]
        struct Sizes {
            sizes: Vec<u64>,
            least: i64,
            #[serde(serialize_with = "number")]
            sum: u128,
        }
        let sizes = vec![1, 1 << 53, (1 << 53) + 1, u64::MAX];
        let sum = 3 * u128::from(u64::MAX);
        let text = json(&Sizes { sizes, least: i64::MIN, sum }).unwrap();
        let found: serde_json::Value = serde_json::from_slice(&text).unwrap();
        let wanted = serde_json::json!({
            "sizes": [1, 9_007_199_254_740_992_u64, "9007199254740993", "18446744073709551615"],
            "least": "-9223372036854775808",
            "sum": "55340232221128654845",
        });
        assert_eq!(found, wanted);
        let pretty = serde_json::to_string_pretty(&[1, 2]).unwrap();
        assert_eq!(json(&[1, 2]).unwrap(), pretty.as_bytes());
    }

    #[test]
    fn json_keeps_every_byte_of_a_name() {
        assert_eq!(text_and_hex(b"ok"), ("ok".into(), None));
        assert_eq!(text_and_hex(b"\xffa").1.as_deref(), Some("ff61"));
    }
}
