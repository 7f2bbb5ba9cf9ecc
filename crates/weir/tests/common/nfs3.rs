//! A minimal NFSv3 client.

use rustix::process::Uid;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

const MOUNT: (u32, u32) = (100_005, 3);
const NFS: (u32, u32) = (100_003, 3);
const PATIENCE: Duration = Duration::from_secs(120);

/// Values in XDR form.
#[derive(Clone, Default)]
struct Words(Vec<u8>);

impl Words {
    fn of(words: &[u32]) -> Self {
        Self(words.iter().flat_map(|word| word.to_be_bytes()).collect())
    }

    fn opaque(mut self, bytes: &[u8]) -> Self {
        self = self.then(Self::of(&[bytes.len() as u32]));
        self.0.extend(bytes);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    fn then(mut self, more: Self) -> Self {
        self.0.extend(more.0);
        self
    }
}

pub(crate) struct Client {
    stream: TcpStream,
    cred: Words,
    xid: u32,
}

impl Client {
    pub(crate) fn connect(port: u16, uid: u32, groups: &[u32]) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let groups = Words::of(&[groups.len() as u32]).then(Words::of(groups));
        let sys = Words::of(&[0]).opaque(b"tester").then(Words::of(&[uid, uid])).then(groups);
        let cred = Words::of(&[1]).opaque(&sys.0).then(Words::of(&[0, 0]));
        Self { stream, cred, xid: 0 }
    }

    /// Like `connect`, over a connection that belongs to another user of this machine; for root
    /// only.
    pub(crate) fn connect_as(owner: u32, port: u16, uid: u32, groups: &[u32]) -> Self {
        std::thread::scope(|scope| {
            let connect = scope.spawn(|| {
                let owner = Uid::from_raw(owner);
                // Only this thread's user; the C library's call would change the process's.
                rustix::thread::set_thread_res_uid(owner, owner, owner).unwrap();
                Self::connect(port, uid, groups)
            });
            connect.join().unwrap()
        })
    }

    /// The results of a call, from their status on, or `None` if the connection ended.
    fn call(
        &mut self,
        (program, version): (u32, u32),
        number: u32,
        args: Words,
    ) -> Option<Vec<u8>> {
        Some(self.exchange((program, version), number, args)?.split_off(24))
    }

    /// A complete reply.
    fn exchange(
        &mut self,
        (program, version): (u32, u32),
        number: u32,
        args: Words,
    ) -> Option<Vec<u8>> {
        self.xid += 1;
        let header = Words::of(&[self.xid, 0, 2, program, version, number]);
        let record = header.then(self.cred.clone()).then(args).0;
        let mark = 0x8000_0000 | record.len() as u32;
        self.stream.write_all(&[&mark.to_be_bytes(), &record[..]].concat()).ok()?;
        let mut mark = [0; 4];
        self.stream.read_exact(&mut mark).ok()?;
        let mut reply = vec![0; (u32::from_be_bytes(mark) & 0x7FFF_FFFF) as usize];
        self.stream.read_exact(&mut reply).ok()?;
        Some(reply)
    }

    /// Whether the server rejects a call on a file because the credential is too weak.
    pub(crate) fn is_refused(&mut self, file: &[u8]) -> bool {
        let args = Words::default().opaque(file).then(Words::of(&[0, 0, 4096]));
        let reply = self.exchange(NFS, 6, args).unwrap();
        // MSG_DENIED, AUTH_ERROR, AUTH_TOOWEAK.
        reply[8..] == Words::of(&[1, 1, 5]).0
    }

    pub(crate) fn mount(&mut self, path: &str) -> Vec<u8> {
        let reply = self.call(MOUNT, 1, Words::default().opaque(path.as_bytes())).unwrap();
        assert_eq!(status(&reply), 0, "mount {path}");
        opaque_at(&reply, 4)
    }

    /// A handle by name, and the status.
    pub(crate) fn lookup(&mut self, dir: &[u8], name: &str) -> Vec<u8> {
        let args = Words::default().opaque(dir).opaque(name.as_bytes());
        let reply = self.call(NFS, 3, args).unwrap();
        assert_eq!(status(&reply), 0, "lookup {name}");
        opaque_at(&reply, 4)
    }

    pub(crate) fn read(&mut self, file: &[u8]) -> u32 {
        let args = Words::default().opaque(file).then(Words::of(&[0, 0, 4096]));
        status(&self.call(NFS, 6, args).unwrap())
    }

    pub(crate) fn create(&mut self, dir: &[u8], name: &str) -> Vec<u8> {
        let set = Words::of(&[0, 1, 0o644, 0, 0, 0, 0, 0]);
        let args = Words::default().opaque(dir).opaque(name.as_bytes()).then(set);
        let reply = self.call(NFS, 8, args).unwrap();
        assert_eq!(status(&reply), 0, "create {name}");
        opaque_at(&reply, 8)
    }

    /// Writes data that need not be durable yet; returns whether it was acknowledged.
    pub(crate) fn write(&mut self, file: &[u8], offset: u64, bytes: &[u8]) -> bool {
        let at = [(offset >> 32) as u32, offset as u32, bytes.len() as u32, 0];
        let args = Words::default().opaque(file).then(Words::of(&at)).opaque(bytes);
        self.call(NFS, 7, args).is_some_and(|reply| status(&reply) == 0)
    }
}

fn status(reply: &[u8]) -> u32 {
    u32::from_be_bytes(reply[..4].try_into().unwrap())
}

fn opaque_at(reply: &[u8], at: usize) -> Vec<u8> {
    let len = status(&reply[at..]) as usize;
    reply[at + 4..at + 4 + len].to_vec()
}
