//! Reads of a file through a memory mapping.

#![allow(unsafe_code, reason = "a mapping is not tied to the life of what it maps")]

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::fs::File;
use std::io;

/// Copies all of a file of `len` bytes out of a mapping, in pieces as large as `buffer`.
///
/// # Errors
/// The file cannot be mapped.
pub(super) fn read(file: &File, len: usize, buffer: &mut [u8]) -> io::Result<()> {
    let map = |len| {
        // SAFETY: a new mapping, which nothing else knows.
        unsafe { mmap(std::ptr::null_mut(), len, ProtFlags::READ, MapFlags::SHARED, file, 0) }
    };
    let base = map(len)?;
    for at in (0..len).step_by(buffer.len()) {
        let now = buffer.len().min(len - at);
        // SAFETY: within the mapping; the file is this run's own, and keeps its size.
        unsafe {
            std::ptr::copy_nonoverlapping(base.cast::<u8>().add(at), buffer.as_mut_ptr(), now);
        };
        std::hint::black_box(&buffer);
    }
    // SAFETY: mapped above, with this length; nothing refers to it any more.
    unsafe { munmap(base, len)? };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn the_last_piece_may_be_short() {
        let mut file = tempfile::tempfile().unwrap();
        let bytes: Vec<u8> = (0..10_000_u32).map(|n| n as u8).collect();
        file.write_all(&bytes).unwrap();
        let mut buffer = vec![0; 4096];
        read(&file, bytes.len(), &mut buffer).unwrap();
        assert_eq!(buffer[..10_000 - 8192], bytes[8192..]);
    }
}
