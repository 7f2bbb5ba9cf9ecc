//! Filehandles: opaque to clients, stable over restarts, and unforgeable.
//!
//! ```text
//!   version (1)  0 (1)  export (2)  inode (8)  generation (8)  MAC (16)
//! ```
//!
//! 1. The server accepts a handle only if the keyed MAC (BLAKE3) over everything before it is
//!    correct. The comparison takes constant time.
//! 2. The key is created once and stored in the state directory, readable by its owner only.
//! 3. A handle has 36 bytes, within NFSv3's limit of 64.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use weir_vfs::FileId;

/// Bytes in a handle.
pub const HANDLE_BYTES: usize = 36;

const VERSION: u8 = 1;
const BODY_BYTES: usize = 20;
const KEY_FILE: &str = "handle.key";

/// A file of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Node {
    /// The number of the export.
    pub export: u16,
    /// The file.
    pub id: FileId,
}

/// Creates and verifies filehandles.
#[derive(Clone)]
pub struct Handles {
    key: [u8; blake3::KEY_LEN],
}

impl std::fmt::Debug for Handles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Handles(secret key)")
    }
}

impl Handles {
    /// Uses the given key.
    pub fn new(key: [u8; blake3::KEY_LEN]) -> Self {
        Self { key }
    }

    /// Uses the key in `state_dir`, and creates it if it does not exist.
    ///
    /// # Errors
    /// The key cannot be read or created, or other users may read it.
    pub fn open(state_dir: &Path) -> io::Result<Self> {
        let path = state_dir.join(KEY_FILE);
        match File::open(&path) {
            Ok(file) => read_key(file, &path).map(Self::new),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                make_key(state_dir, &path).map(Self::new)
            }
            Err(error) => Err(error),
        }
    }

    /// An identifier of the server, derived from its key without revealing the key.
    pub fn identity(&self) -> [u8; 16] {
        let hash = blake3::keyed_hash(&self.key, b"server identity");
        let mut identity = [0; 16];
        identity.copy_from_slice(&hash.as_bytes()[..16]);
        identity
    }

    /// A keyed hash that identifies an exclusive creation.
    pub(crate) fn seal_creation(&self, input: &[u8]) -> [u8; 8] {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(b"exclusive creation").update(input);
        let mut seal = [0; 8];
        seal.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
        seal
    }

    /// The filehandle of a file.
    pub fn seal(&self, node: Node) -> [u8; HANDLE_BYTES] {
        let mut handle = [0; HANDLE_BYTES];
        handle[0] = VERSION;
        handle[2..4].copy_from_slice(&node.export.to_be_bytes());
        handle[4..12].copy_from_slice(&node.id.ino.to_be_bytes());
        handle[12..BODY_BYTES].copy_from_slice(&node.id.generation.to_be_bytes());
        let mac = blake3::keyed_hash(&self.key, &handle[..BODY_BYTES]);
        handle[BODY_BYTES..].copy_from_slice(&mac.as_bytes()[..HANDLE_BYTES - BODY_BYTES]);
        handle
    }

    /// The file that a handle names; `None` if this server did not create the handle.
    pub fn unseal(&self, handle: &[u8]) -> Option<Node> {
        let handle: &[u8; HANDLE_BYTES] = handle.try_into().ok()?;
        let [version, _, e0, e1, rest @ ..] = handle;
        let (ino, rest) = rest.split_first_chunk::<8>()?;
        let (generation, _) = rest.split_first_chunk::<8>()?;
        let node = Node {
            export: u16::from_be_bytes([*e0, *e1]),
            id: FileId {
                ino: u64::from_be_bytes(*ino),
                generation: u64::from_be_bytes(*generation),
            },
        };
        (*version == VERSION && same(&self.seal(node), handle)).then_some(node)
    }
}

/// Compares without stopping at the first difference.
fn same(a: &[u8; HANDLE_BYTES], b: &[u8; HANDLE_BYTES]) -> bool {
    std::hint::black_box(a.iter().zip(b).fold(0, |diff, (a, b)| diff | (a ^ b))) == 0
}

fn read_key(file: File, path: &Path) -> io::Result<[u8; blake3::KEY_LEN]> {
    let refuse = |why: &str| {
        Err(io::Error::new(io::ErrorKind::InvalidData, format!("{}: {why}", path.display())))
    };
    if file.metadata()?.permissions().mode() & 0o077 != 0 {
        return refuse("other users may read the key; chmod 600 it");
    }
    let mut key = Vec::new();
    file.take(blake3::KEY_LEN as u64 + 1).read_to_end(&mut key)?;
    match key.try_into() {
        Ok(key) => Ok(key),
        Err(_) => {
            refuse("not a key; remove the file to create a new one (clients must then mount again)")
        }
    }
}

fn make_key(state_dir: &Path, path: &Path) -> io::Result<[u8; blake3::KEY_LEN]> {
    let mut key = [0; blake3::KEY_LEN];
    getrandom::fill(&mut key).map_err(io::Error::other)?;
    let temporary = state_dir.join(format!("{KEY_FILE}.new"));
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    file.write_all(&key)?;
    file.sync_all()?;
    // The key is renamed into place once it is complete, so a crash leaves no key or a complete
    // one.
    std::fs::rename(&temporary, path)?;
    File::open(state_dir)?.sync_all()?;
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node() -> Node {
        Node { export: 3, id: FileId { ino: 42, generation: 7 } }
    }

    #[test]
    fn a_handle_with_any_changed_byte_is_refused() {
        let handles = Handles::new([9; 32]);
        let handle = handles.seal(node());
        assert_eq!(handles.unseal(&handle), Some(node()));
        for at in 0..HANDLE_BYTES {
            let mut forged = handle;
            forged[at] ^= 1;
            assert_eq!(handles.unseal(&forged), None, "byte {at}");
        }
        assert_eq!(handles.unseal(&handle[1..]), None);
        assert_eq!(Handles::new([8; 32]).unseal(&handle), None);
    }

    #[test]
    fn the_handle_key_persists_and_is_private() {
        let dir = tempfile::tempdir().unwrap();
        let handle = Handles::open(dir.path()).unwrap().seal(node());
        assert_eq!(Handles::open(dir.path()).unwrap().unseal(&handle), Some(node()));
        let key = dir.path().join(KEY_FILE);
        assert_eq!(key.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).unwrap();
        let error = Handles::open(dir.path()).unwrap_err();
        assert!(error.to_string().contains("chmod 600"), "{error}");
    }
}
