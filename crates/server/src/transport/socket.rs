//! A connection's socket, registered with the runtime or free.
//!
//! A registered socket wakes a runtime thread whenever bytes arrive or are sent, even while the
//! connection's own thread is polling it. For calls that come one at a time, this wake-up is a
//! large part of the cost. So a socket that is polled again and again is deregistered
//! ([`Socket::free`]), and registered again when the connection must wait for it.

use bytes::BytesMut;
use socket2::SockRef;
use std::io::{self, IoSlice, Read, Write};
use tokio::net::TcpStream;

#[derive(Debug)]
pub(super) enum Socket {
    Registered(TcpStream),
    Free(std::net::TcpStream),
    /// Registering or deregistering failed.
    Lost,
}

impl Socket {
    /// Registers the socket if needed, for waiting.
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

    /// Deregisters the socket.
    pub(super) fn free(&mut self) -> io::Result<()> {
        if let Self::Registered(_) = self
            && let Self::Registered(stream) = std::mem::replace(self, Self::Lost)
        {
            *self = Self::Free(stream.into_std()?);
        }
        Ok(())
    }

    /// Reads what has arrived, without consulting the runtime's readiness.
    pub(super) fn look(&self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Registered(stream) => (&*SockRef::from(stream)).read(into),
            Self::Free(stream) => (&mut &*stream).read(into),
            Self::Lost => Err(lost()),
        }
    }

    /// Reads into the buffer's spare capacity; [`io::ErrorKind::WouldBlock`] if nothing has
    /// arrived.
    pub(super) fn try_read_buf(&self, into: &mut BytesMut) -> io::Result<usize> {
        match self {
            Self::Registered(stream) => stream.try_read_buf(into),
            Self::Free(_) | Self::Lost => Err(lost()),
        }
    }

    /// Writes as much as the socket accepts; [`io::ErrorKind::WouldBlock`] if that is nothing.
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
