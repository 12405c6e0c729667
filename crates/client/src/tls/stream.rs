//! One TCP connection, with or without TLS.

use hyper_util::client::legacy::connect::{Connected as Link, Connection};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, BufReader, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsStream;
use tonic::transport::server::{Connected, TcpConnectInfo};

/// Maximum number of bytes that are encrypted before one write to the socket.
pub(super) const SEND_BYTES: usize = 256 << 10;

/// Maximum number of bytes per read of the socket, because rustls itself requests 4 KiB at a time.
const RECEIVE_BYTES: usize = 128 << 10;

/// Buffered TCP stream that TLS uses.
pub(super) type PlainStream = BufReader<TcpStream>;

/// Returns the buffered stream of a TCP connection, which TLS uses.
pub(super) fn below(tcp: TcpStream) -> PlainStream {
    BufReader::with_capacity(RECEIVE_BYTES, tcp)
}

/// A TCP connection, with or without TLS.
#[derive(Debug)]
pub enum SocketStream {
    /// The connection is without TLS.
    Plain(TcpStream),
    /// The connection uses TLS.
    Tls(Box<TlsStream<BufReader<TcpStream>>>),
}

impl SocketStream {
    fn tcp(&self) -> &TcpStream {
        match self {
            Self::Plain(tcp) => tcp,
            Self::Tls(tls) => tls.get_ref().0.get_ref(),
        }
    }
}

impl Connected for SocketStream {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        self.tcp().connect_info()
    }
}

impl Connection for SocketStream {
    fn connected(&self) -> Link {
        Link::new()
    }
}

impl AsyncRead for SocketStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_read(cx, buf),
            Self::Tls(tls) => poll_read_all(tls, cx, buf),
        }
    }
}

/// Reads all available bytes. A TLS stream alone returns one record of 16 KiB at a time, and the caller would pass such small pieces on to
/// files, or to the next thread.
fn poll_read_all(
    tls: &mut TlsStream<PlainStream>,
    cx: &mut Context<'_>,
    buf: &mut ReadBuf<'_>,
) -> Poll<io::Result<()>> {
    let before = buf.filled().len();
    loop {
        let filled = buf.filled().len();
        let read = Pin::new(&mut *tls).poll_read(cx, buf);
        if buf.filled().len() == filled {
            // The next call returns the error or the end again.
            return if filled > before {
                Poll::Ready(Ok(()))
            } else {
                read
            };
        }
        if buf.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
    }
}

impl AsyncWrite for SocketStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_write(cx, buf),
            Self::Tls(tls) => Pin::new(tls).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_write_vectored(cx, bufs),
            Self::Tls(tls) => Pin::new(tls).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(tcp) => tcp.is_write_vectored(),
            Self::Tls(tls) => tls.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_flush(cx),
            Self::Tls(tls) => Pin::new(tls).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_shutdown(cx),
            Self::Tls(tls) => Pin::new(tls).poll_shutdown(cx),
        }
    }
}
