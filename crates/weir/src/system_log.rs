//! Messages of this process: to standard error, or, once it has no terminal any more, to the system's log
//! (syslog(3), which journald reads, too).

use std::io::{self, Write};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::OnceLock;

/// Where the system's log receives messages.
const LOG: &str = "/dev/log";
/// Facility "daemon", severity "warning" (RFC 3164, section 4.1.1).
const PRIORITY: u8 = 3 << 3 | 4;

static SYSTEM: OnceLock<UnixDatagram> = OnceLock::new();

/// Sends messages to the system's log from now on, if there is one.
pub(crate) fn use_system_log() {
    if let Ok(socket) = connect(Path::new(LOG)) {
        // The first one stays.
        let _ = SYSTEM.set(socket);
    }
}

fn connect(log: &Path) -> io::Result<UnixDatagram> {
    let socket = UnixDatagram::unbound()?;
    socket.connect(log)?;
    // A log that does not read must not stop this process.
    socket.set_nonblocking(true)?;
    Ok(socket)
}

fn message(text: &[u8]) -> Vec<u8> {
    let head = format!("<{PRIORITY}>weir[{}]: ", std::process::id());
    [head.as_bytes(), text.trim_ascii_end()].concat()
}

/// Writes messages, each by one call.
pub(crate) struct Messages;

impl Write for Messages {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match SYSTEM.get() {
            Some(system) => {
                // A message that is lost is no reason to fail.
                let _ = system.send(&message(bytes));
                Ok(bytes.len())
            }
            None => io::stderr().write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_the_form_of_the_system_log() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let log = UnixDatagram::bind(&path).unwrap();
        connect(&path).unwrap().send(&message(b"disk full\n")).unwrap();
        let mut received = [0; 100];
        let len = log.recv(&mut received).unwrap();
        let expected = format!("<28>weir[{}]: disk full", std::process::id());
        assert_eq!(std::str::from_utf8(&received[..len]).unwrap(), expected);
        assert!(connect(&dir.path().join("none")).is_err());
    }
}
