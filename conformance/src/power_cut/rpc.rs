//! A few NFSv3 calls with plain handles: what no client of a kernel lets a program do.

use std::io::{Error, Read, Result, Write};
use std::net::TcpStream;
use std::time::Duration;

const NFS: u32 = 100_003;
const MOUNT: u32 = 100_005;
/// Bytes of `fattr3` (RFC 1813 section 2.5), and where `fileid` is in them.
const ATTR_BYTES: usize = 84;
const FILEID: usize = 52;
/// How long a server may take for a call.
const PATIENCE: Duration = Duration::from_secs(60);

/// A connection to a server.
#[derive(Debug)]
pub struct Nfs3 {
    stream: TcpStream,
    xid: u32,
}

/// What a call found: results, or the status of `nfsstat3`.
pub type Found<T> = std::result::Result<T, u32>;

/// The results of a call that are not read yet.
struct Results(Vec<u8>, usize);

impl Nfs3 {
    /// Connects, for at most as long as a call may take.
    ///
    /// # Errors
    /// No server answers.
    pub fn connect(address: &str) -> Result<Self> {
        let begun = std::time::Instant::now();
        let stream = loop {
            match TcpStream::connect(address) {
                Ok(stream) => break stream,
                Err(error) if begun.elapsed() > PATIENCE => return Err(error),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        };
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self { stream, xid: 0 })
    }

    /// The handle of an export's root (RFC 1813 section 5.2.1).
    ///
    /// # Errors
    /// The call fails, or the server refuses it.
    pub fn mount(&mut self, export: &str) -> Result<Found<Vec<u8>>> {
        let mut results = self.call(MOUNT, 1, &opaque(export.as_bytes()))?;
        results.status(|results| results.opaque())
    }

    /// The handle of a name (RFC 1813 section 3.3.3).
    ///
    /// # Errors
    /// The call fails.
    pub fn lookup(&mut self, dir: &[u8], name: &str) -> Result<Found<Vec<u8>>> {
        let args = [opaque(dir), opaque(name.as_bytes())].concat();
        self.call(NFS, 3, &args)?.status(|results| results.opaque())
    }

    /// The file number of a handle (RFC 1813 section 3.3.1).
    ///
    /// # Errors
    /// The call fails.
    pub fn fileid(&mut self, handle: &[u8]) -> Result<Found<u64>> {
        self.call(NFS, 1, &opaque(handle))?.status(|results| {
            let attr = results.bytes(ATTR_BYTES)?;
            Ok(attr[FILEID..FILEID + 8].iter().fold(0, |id, &b| id << 8 | u64::from(b)))
        })
    }

    fn call(&mut self, program: u32, procedure: u32, args: &[u8]) -> Result<Results> {
        self.xid += 1;
        // AUTH_SYS as the superuser: stamp, name of the machine, user, group, groups.
        let cred = [0u32; 5].map(u32::to_be_bytes).concat();
        let header = [self.xid, 0, 2, program, 3, procedure, 1].map(u32::to_be_bytes).concat();
        let verf = [0; 8];
        let call = [&header[..], &opaque(&cred), &verf, args].concat();
        self.stream.write_all(&(call.len() as u32 | 1 << 31).to_be_bytes())?;
        self.stream.write_all(&call)?;
        let mut reply = Vec::new();
        loop {
            let mut header = [0; 4];
            self.stream.read_exact(&mut header)?;
            let header = u32::from_be_bytes(header);
            let begin = reply.len();
            reply.resize(begin + (header & !(1 << 31)) as usize, 0);
            self.stream.read_exact(&mut reply[begin..])?;
            if header >> 31 == 1 {
                break;
            }
        }
        let mut results = Results(reply, 0);
        let (xid, is_reply, denied) = (results.u32()?, results.u32()?, results.u32()?);
        if (xid, is_reply, denied) != (self.xid, 1, 0) {
            return Err(Error::other(format!("call {program} {procedure} is denied")));
        }
        results.u32()?;
        results.opaque()?;
        match results.u32()? {
            0 => Ok(results),
            error => Err(Error::other(format!("call {program} {procedure}: error {error}"))),
        }
    }
}

impl Results {
    /// Reads the status, and what follows if it is 0.
    fn status<T>(&mut self, read: impl FnOnce(&mut Self) -> Result<T>) -> Result<Found<T>> {
        match self.u32()? {
            0 => read(self).map(Ok),
            status => Ok(Err(status)),
        }
    }

    fn bytes(&mut self, count: usize) -> Result<&[u8]> {
        let bytes = self.0.get(self.1..self.1 + count);
        self.1 += count;
        bytes.ok_or_else(|| Error::other("the reply is cut short"))
    }

    fn u32(&mut self) -> Result<u32> {
        Ok(self.bytes(4)?.iter().fold(0, |number, &byte| number << 8 | u32::from(byte)))
    }

    fn opaque(&mut self) -> Result<Vec<u8>> {
        let length = self.u32()? as usize;
        let bytes = self.bytes(length)?.to_vec();
        self.bytes(length.next_multiple_of(4) - length)?;
        Ok(bytes)
    }
}

fn opaque(bytes: &[u8]) -> Vec<u8> {
    let mut encoded = [&(bytes.len() as u32).to_be_bytes(), bytes].concat();
    encoded.resize(encoded.len().next_multiple_of(4), 0);
    encoded
}
