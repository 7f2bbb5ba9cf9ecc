//! A connection's socket, registered with the runtime or free.
//!
//! A registered socket wakes a thread of the runtime whenever something arrives or is taken, even
//! while the connection's own thread is looking at it; for calls that come one at a time, that
//! wake-up is a large part of what they cost. So a socket that is looked at again and again is
//! taken out ([`Socket::free`]), and registered when it has to be waited for.

use bytes::BytesMut;
use socket2::SockRef;
use std::io::{self, IoSlice, Read, Write};
use tokio::net::TcpStream;

#[derive(Debug)]
pub(super) enum Socket {
    Registered(TcpStream),
    Free(std::net::TcpStream),
    /// The change from one to the other failed.
    Lost,
}

impl Socket {
    /// The socket to be waited for.
    pub(super) fn registered(&mut self) -> io::Result<&TcpStream> {
        if let Self::Free(_) = self
            && let Self::Free(stream) = std::mem::replace(self, Self::Lost)
        {
            *self = Self::Registered(TcpStream::from_std(stream)?);
        }
        match self {
            Self::Registered(stream) => Ok(stream),
            Self::Free(_) | Self::Lost => Err(lost()),
        }
    }

    /// Takes the socket out of the runtime.
    pub(super) fn free(&mut self) -> io::Result<()> {
        if let Self::Registered(_) = self
            && let Self::Registered(stream) = std::mem::replace(self, Self::Lost)
        {
            *self = Self::Free(stream.into_std()?);
        }
        Ok(())
    }

    /// Reads what has arrived, without asking the runtime whether something has.
    pub(super) fn look(&self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Registered(stream) => (&*SockRef::from(stream)).read(into),
            Self::Free(stream) => (&mut &*stream).read(into),
            Self::Lost => Err(lost()),
        }
    }

    /// Reads into the room that there is; [`io::ErrorKind::WouldBlock`] if nothing has arrived.
    pub(super) fn try_read_buf(&self, into: &mut BytesMut) -> io::Result<usize> {
        match self {
            Self::Registered(stream) => stream.try_read_buf(into),
            Self::Free(_) | Self::Lost => Err(lost()),
        }
    }

    /// Writes what the socket takes; [`io::ErrorKind::WouldBlock`] if that is nothing.
    pub(super) fn try_write_vectored(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Registered(stream) => stream.try_write_vectored(slices),
            Self::Free(stream) => (&mut &*stream).write_vectored(slices),
            Self::Lost => Err(lost()),
        }
    }
}

fn lost() -> io::Error {
    io::ErrorKind::NotConnected.into()
}
