//! Messages with descriptors and with their senders' credentials, over a Unix socket that keeps message boundaries.

use crate::fs::Caller;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind, listen,
    recvmsg, sendmsg, socket_with, sockopt,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::path::Path;

/// Maximum number of connections that wait to be accepted.
const BACKLOG: i32 = 1024;

/// Returns a listening socket at a path, which must not exist.
pub(super) fn listener(path: &Path) -> Result<OwnedFd, Errno> {
    let kind = SocketType::SEQPACKET;
    let socket = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Makes the Linux kernel add the sender's credentials to each message.
pub(super) fn know_senders(connection: BorrowedFd<'_>) -> Result<(), Errno> {
    sockopt::set_socket_passcred(connection, true)
}

/// Waits for the next message; 0 bytes at the end. The Linux kernel has verified the sender's credentials.
pub(super) fn receive(
    connection: BorrowedFd<'_>,
    into: &mut [u8],
) -> Result<(usize, Option<Caller>), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = loop {
        let mut parts = [IoSliceMut::new(into)];
        match recvmsg(
            connection,
            &mut parts,
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        ) {
            Err(Errno::INTR) => {}
            got => break got?,
        }
    };
    let sender = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmCredentials(sender) => Some(Caller {
            uid: sender.uid.as_raw(),
            gid: sender.gid.as_raw(),
            pid: sender.pid.as_raw_nonzero().get().cast_unsigned(),
        }),
        _ => None,
    });
    Ok((got.bytes, sender))
}

/// Sends a message, with a descriptor if there is one.
pub(super) fn send(
    connection: BorrowedFd<'_>,
    parts: [&[u8]; 2],
    descriptor: Option<&OwnedFd>,
) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = descriptor.map(|descriptor| [descriptor.as_fd()]);
    if let Some(descriptors) = &descriptors {
        control.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let parts = parts.map(IoSlice::new);
    loop {
        match sendmsg(connection, &parts, &mut control, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            sent => return sent.map(drop),
        }
    }
}
