//! The side that asks.

use crate::directory::{DirectoryError, pid_of, verify};
use crate::protocol::{MAX_REPLY_BYTES, Reply, Request, line};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Time that a process has for each of its replies: a large file takes a while to read.
const PATIENCE: Duration = Duration::from_secs(600);

/// A running process, and a connection to it.
#[derive(Debug, Clone)]
pub struct Asked {
    /// Its process ID.
    pub pid: u32,
    /// Its socket.
    pub socket: PathBuf,
}

/// The processes that listen in `dir`, by process ID. Removes the sockets of those that have ended.
///
/// # Errors
/// The directory cannot be read, or others can enter it. A missing directory has no processes.
pub fn processes(dir: &Path) -> Result<Vec<Asked>, DirectoryError> {
    let in_dir = |source| DirectoryError::Io { path: dir.to_owned(), source };
    match std::fs::symlink_metadata(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        _ => verify(dir)?,
    }
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(in_dir)? {
        let socket = entry.map_err(in_dir)?.path();
        let Some(pid) = pid_of(&socket) else { continue };
        match UnixStream::connect(&socket) {
            Ok(_) => found.push(Asked { pid, socket }),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                // Nothing listens: the process was killed. If it cannot be removed, it is found again.
                let _ = std::fs::remove_file(&socket);
            }
            // It has ended since the listing.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(DirectoryError::Io { path: socket, source }),
        }
    }
    found.sort_by_key(|process| process.pid);
    Ok(found)
}

/// Sends a request to a process.
///
/// # Errors
/// The process cannot be reached.
pub fn ask(process: &Asked, request: &Request) -> io::Result<Replies> {
    ask_within(PATIENCE, process, request)
}

/// The same, where each reply has to come within `patience`.
///
/// # Errors
/// As [`ask`].
pub fn ask_within(patience: Duration, process: &Asked, request: &Request) -> io::Result<Replies> {
    let mut stream = UnixStream::connect(&process.socket)?;
    stream.set_read_timeout(Some(patience))?;
    stream.write_all(&line(request)?)?;
    Ok(Replies { from: Some(BufReader::new(stream)) })
}

/// Whether the error of a request says that the process has ended. One that still listens has not, although it hung
/// up: its error is one to report.
pub fn has_ended(process: &Asked, error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, NotFound, UnexpectedEof};
    // Which one it is depends on the moment of the end.
    match error.kind() {
        NotFound | ConnectionRefused => true,
        ConnectionReset | BrokenPipe | UnexpectedEof => is_gone(process),
        _ => false,
    }
}

/// Whether nothing listens any more. A process that ends closes its connections one after another.
fn is_gone(process: &Asked) -> bool {
    (0..100).any(|look| {
        if look > 0 {
            std::thread::sleep(Duration::from_millis(10));
        }
        UnixStream::connect(&process.socket).is_err()
    })
}

/// The replies to a request, without [`Reply::End`].
#[derive(Debug)]
pub struct Replies {
    /// `None` after the end, and after an error.
    from: Option<BufReader<UnixStream>>,
}

impl Replies {
    fn read(from: &mut BufReader<UnixStream>) -> io::Result<Reply> {
        let mut line = Vec::new();
        from.take(MAX_REPLY_BYTES).read_until(b'\n', &mut line)?;
        if !line.ends_with(b"\n") {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(serde_json::from_slice(&line)?)
    }
}

impl Iterator for Replies {
    type Item = io::Result<Reply>;

    /// The next reply. An answer that stops before its end is an error.
    fn next(&mut self) -> Option<Self::Item> {
        let reply = Self::read(self.from.as_mut()?);
        match reply {
            Ok(Reply::End) => {
                self.from = None;
                None
            }
            Ok(reply) => Some(Ok(reply)),
            Err(error) => {
                self.from = None;
                Some(Err(error))
            }
        }
    }
}
