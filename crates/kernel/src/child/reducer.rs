//! A child that reduces arrays, order after order, until nobody has any more: see [`crate::reducing`].

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;

use rustix::mm::MapFlags;

use crate::array::{ArrayError, Reduced, Reducer};
use crate::builtin::series::Mapped;
use crate::fork_server::receive;
use crate::reducing::{ANSWER_BYTES_MAX, Answer, ORDER_BYTES_MAX, Order, Piece, Trouble, length};

/// A multiple of the size of a page, whatever that is here.
const PAGE_BYTES: u64 = 64 << 10;

/// Serves the socket that is the standard input; gives the exit code.
pub(super) fn serve() -> u8 {
    let Ok(socket) = io::stdin().as_fd().try_clone_to_owned() else {
        return 1;
    };
    let mut socket = UnixStream::from(socket);
    let mut worker = Worker::default();
    loop {
        match worker.turn(&mut socket) {
            Ok(true) => {}
            Ok(false) => return 0,
            Err(error) => {
                super::complain(&format!("reducer: {error}"));
                return 1;
            }
        }
    }
}

#[derive(Default)]
struct Worker {
    reducer: Reducer,
    /// What is gathered from several pieces.
    gathered: Vec<u8>,
}

impl Worker {
    /// Carries out one order; `false` if there is none.
    fn turn(&mut self, socket: &mut UnixStream) -> io::Result<bool> {
        let Some((file, order)) = order(socket)? else {
            return Ok(false);
        };
        let answer = self.carry_out(&file, &order, socket)?;
        let answer = postcard::to_allocvec(&answer).map_err(io::Error::other)?;
        socket.write_all(&length(answer.len(), ANSWER_BYTES_MAX)?)?;
        socket.write_all(&answer)?;
        Ok(true)
    }

    fn carry_out(
        &mut self,
        file: &File,
        order: &Order,
        socket: &mut UnixStream,
    ) -> io::Result<Answer> {
        // Whoever asks has done so before; if not, what was sent can't be told from what follows it.
        order.check().map_err(io::Error::other)?;
        if let [Piece::Held { offset, length }] = order.pieces[..] {
            return self.in_place(file, order, (offset, length));
        }
        self.gathered.clear();
        for piece in &order.pieces {
            let start = self.gathered.len();
            let (Piece::Held { length, .. } | Piece::Sent(length) | Piece::Hole(length)) = piece;
            let end = start + usize::try_from(*length).map_err(io::Error::other)?;
            self.gathered.resize(end, 0);
            let bytes = &mut self.gathered[start..];
            match piece {
                Piece::Held { offset, .. } => file.read_exact_at(bytes, *offset)?,
                Piece::Sent(_) => socket.read_exact(bytes)?,
                Piece::Hole(_) => {}
            }
        }
        let reduced = self.reducer.reduce(&order.spec, &self.gathered);
        Ok(reduced.map_err(Trouble::from))
    }

    /// The bytes where they lie: nothing of them is copied.
    fn in_place(
        &mut self,
        file: &File,
        order: &Order,
        (offset, length): (u64, u64),
    ) -> io::Result<Answer> {
        let size = file.metadata()?.len();
        if offset.checked_add(length).is_none_or(|end| end > size) {
            let why = "the bytes lie beyond the end of the file";
            return Ok(Err(Trouble {
                message: why.to_owned(),
                of_data: true,
            }));
        }
        let lead = usize::try_from(offset % PAGE_BYTES).map_err(io::Error::other)?;
        let length = usize::try_from(length).map_err(io::Error::other)?;
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        let mapped = Mapped::range(file, offset - lead as u64, lead + length, flags)?;
        let reduced: Result<Reduced, ArrayError> =
            self.reducer.reduce(&order.spec, &mapped[lead..]);
        Ok(reduced.map_err(Trouble::from))
    }
}

/// The next order and its file.
fn order(socket: &mut UnixStream) -> io::Result<Option<(File, Order)>> {
    let mut head = [0; 4];
    let (got, descriptors) = receive(socket, &mut head)?;
    if got == 0 {
        return Ok(None);
    }
    socket.read_exact(&mut head[got..])?;
    let length = u32::from_le_bytes(head) as usize;
    let file: Option<OwnedFd> = descriptors.into_iter().next();
    let file = file.filter(|_| length <= ORDER_BYTES_MAX);
    let file = file.ok_or(io::ErrorKind::InvalidData)?;
    let mut order = vec![0; length];
    socket.read_exact(&mut order)?;
    let order = postcard::from_bytes(&order).map_err(io::Error::other)?;
    Ok(Some((file.into(), order)))
}
