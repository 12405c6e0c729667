//! Connections of a listener. Limits ensure that no peer keeps other peers out: unauthenticated clients must authenticate soon, and the
//! number of unauthenticated clients and the number of connections of each user are limited. Beyond a limit, the connection that has been
//! silent for longest is closed.
//!
//! Daemons of the cluster, which may act for any user, have no limit.

use futures_util::task::AtomicWaker;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::transport::server::Connected;

const UNAUTHENTICATED_MAX: usize = 256;

/// Maximum time in which an unauthenticated client must authenticate, however many bytes it sends.
const AUTHENTICATION_MAX: Duration = Duration::from_secs(15);

/// Interval of the search for unauthenticated clients whose time has passed.
const LOOK: Duration = Duration::from_secs(1);

/// Identity of a connection's peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerKind {
    /// The peer has not authenticated yet.
    Unauthenticated,
    /// The peer is an ordinary user with this user id.
    User(u32),
    /// The peer is a daemon of the cluster, or an administrator.
    Daemon,
}

/// All connections of a listener. A clone is cheap and refers to the same connections.
#[derive(Clone, Debug)]
pub struct Guests(Arc<OpenGuests>);

#[derive(Debug)]
struct OpenGuests {
    each_max: usize,
    since: Instant,
    all: Mutex<All>,
}

#[derive(Debug, Default)]
struct All {
    last: u64,
    guests: BTreeMap<u64, Arc<Seat>>,
}

/// Entry of one connection in the list of connections.
#[derive(Debug)]
struct Seat {
    who: Mutex<PeerKind>,
    /// Time at which the connection was opened, in milliseconds from the start of the listener.
    came: u64,
    heard: AtomicU64,
    asked_to_go: AtomicBool,
    waker: AtomicWaker,
}

impl Seat {
    fn ask_to_go(&self) {
        self.asked_to_go.store(true, Ordering::Release);
        self.waker.wake();
    }
}

/// Handle of one connection, for the code that serves it. A clone is cheap and refers to the same connection.
#[derive(Clone, Debug)]
pub struct UserConnection {
    seat: Arc<Seat>,
    open: Arc<OpenGuests>,
}

impl Guests {
    /// Returns an empty list of connections, with a limit of `each_max` connections for each ordinary user.
    #[must_use]
    pub fn new(each_max: usize) -> Self {
        Self(Arc::new(OpenGuests {
            each_max,
            since: Instant::now(),
            all: Mutex::default(),
        }))
    }

    /// Closes the connections of slow unauthenticated clients, for as long as the listener exists. Must be called on a runtime.
    pub fn watch(&self) {
        let open = Arc::downgrade(&self.0);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(LOOK).await;
                let Some(open) = open.upgrade() else { return };
                open.close_slow(AUTHENTICATION_MAX);
            }
        });
    }

    /// Adds a connection to the list of connections.
    #[must_use]
    pub fn seat<S>(&self, stream: S, who: PeerKind) -> Seated<S> {
        let now = self.0.now();
        let seat = Arc::new(Seat {
            who: Mutex::new(who),
            came: now,
            heard: AtomicU64::new(now),
            asked_to_go: AtomicBool::new(false),
            waker: AtomicWaker::new(),
        });
        let mut all = self.0.all.lock();
        all.last += 1;
        let number = all.last;
        all.guests.insert(number, seat.clone());
        self.0.make_space(&all, who);
        drop(all);
        let guest = UserConnection {
            seat,
            open: self.0.clone(),
        };
        let place = GuestSlot { guest, number };
        Seated { stream, place }
    }
}

impl OpenGuests {
    fn now(&self) -> u64 {
        u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Asks the connection that has been silent for longest to close, if connections of the kind `who` exceed their limit.
    fn make_space(&self, all: &All, who: PeerKind) {
        let most = match who {
            PeerKind::Daemon => return,
            PeerKind::Unauthenticated => UNAUTHENTICATED_MAX,
            PeerKind::User(_) => self.each_max,
        };
        let asked = |seat: &Seat| seat.asked_to_go.load(Ordering::Acquire);
        let alike = || {
            let seats = all.guests.values();
            seats.filter(|seat| *seat.who.lock() == who && !asked(seat))
        };
        if alike().count() <= most {
            return;
        }
        let silent = alike().min_by_key(|seat| seat.heard.load(Ordering::Relaxed));
        if let Some(seat) = silent {
            seat.ask_to_go();
        }
    }

    fn close_slow(&self, after: Duration) {
        let after = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
        let now = self.now();
        for seat in self.all.lock().guests.values() {
            if *seat.who.lock() == PeerKind::Unauthenticated
                && now.saturating_sub(seat.came) > after
            {
                seat.ask_to_go();
            }
        }
    }
}

impl UserConnection {
    /// Records the authenticated identity of the connection's peer. After several authentications the last identity counts, except that a
    /// connection of a daemon of the cluster keeps the daemon's identity.
    pub fn introduce(&self, who: PeerKind) {
        {
            let mut known = self.seat.who.lock();
            if *known == who || *known == PeerKind::Daemon {
                return;
            }
            *known = who;
        }
        let all = self.open.all.lock();
        self.open.make_space(&all, who);
    }
}

/// A stream whose connection is in the list of connections.
#[derive(Debug)]
pub struct Seated<S> {
    // The connection is closed before its place is free.
    stream: S,
    place: GuestSlot,
}

/// Entry in the list of connections, which is removed when this value is dropped.
#[derive(Debug)]
struct GuestSlot {
    guest: UserConnection,
    number: u64,
}

impl Drop for GuestSlot {
    fn drop(&mut self) {
        self.guest.open.all.lock().guests.remove(&self.number);
    }
}

impl<S> Seated<S> {
    /// Returns the handle for the code that serves the connection.
    pub fn guest(&self) -> &UserConnection {
        &self.place.guest
    }

    /// Moves the list entry of the connection to the stream that the connection has become.
    pub fn with<T>(self, stream: T) -> Seated<T> {
        let place = self.place;
        Seated { stream, place }
    }

    /// Waits until another connection needs the list entry, so that this connection must close.
    pub async fn asked_to_go(&self) {
        std::future::poll_fn(|cx| match self.check(cx) {
            Ok(()) => Poll::Pending,
            Err(_) => Poll::Ready(()),
        })
        .await;
    }

    /// Returns an error if the connection must close. The task is woken when this happens.
    fn check(&self, cx: &Context<'_>) -> io::Result<()> {
        let seat = &self.guest().seat;
        seat.waker.register(cx.waker());
        if seat.asked_to_go.load(Ordering::Acquire) {
            return Err(io::Error::new(
                io::ErrorKind::ConnectionAborted,
                "the connection limit is reached: another connection needs this place",
            ));
        }
        Ok(())
    }

    fn heard<T>(&self, done: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if matches!(done, Poll::Ready(Ok(_))) {
            let now = self.guest().open.now();
            self.guest().seat.heard.store(now, Ordering::Relaxed);
        }
        done
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Seated<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.check(cx)?;
        let read = Pin::new(&mut this.stream).poll_read(cx, buf);
        this.heard(read)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Seated<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.check(cx)?;
        let written = Pin::new(&mut this.stream).poll_write(cx, buf);
        this.heard(written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.check(cx)?;
        let written = Pin::new(&mut this.stream).poll_write_vectored(cx, bufs);
        this.heard(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.check(cx)?;
        Pin::new(&mut this.stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

/// Information about a connection for a service of tonic.
#[derive(Clone, Debug)]
pub struct Met<I> {
    /// Handle of the connection.
    pub guest: UserConnection,
    /// Information that the stream itself provides.
    pub info: I,
}

impl<S: Connected> Connected for Seated<S> {
    type ConnectInfo = Met<S::ConnectInfo>;

    fn connect_info(&self) -> Self::ConnectInfo {
        Met {
            guest: self.guest().clone(),
            info: self.stream.connect_info(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    const EACH_MAX: usize = 2;

    fn seated(guests: &Guests, who: PeerKind) -> (DuplexStream, Seated<DuplexStream>) {
        let (near, far) = duplex(64);
        (near, guests.seat(far, who))
    }

    async fn lives(seated: &mut Seated<DuplexStream>, near: &mut DuplexStream) -> bool {
        let _ = near.write_all(b"a").await;
        seated.read_u8().await.is_ok()
    }

    #[tokio::test]
    async fn listener_closes_longest_silent_unauthenticated_connection() {
        let guests = Guests::new(EACH_MAX);
        let mut all: Vec<_> = (0..UNAUTHENTICATED_MAX)
            .map(|_| seated(&guests, PeerKind::Unauthenticated))
            .collect();
        let (mut known_near, mut known) = seated(&guests, PeerKind::User(7));
        let (mut daemon_near, mut daemon) = seated(&guests, PeerKind::Daemon);
        // All except one send bytes after it.
        let before = guests.0.now();
        while guests.0.now() == before {
            tokio::task::yield_now().await;
        }
        for (near, seated) in all.iter_mut().skip(1) {
            assert!(lives(seated, near).await);
        }
        let (mut near, mut newcomer) = seated(&guests, PeerKind::Unauthenticated);
        let (first_near, first) = &mut all[0];
        assert!(!lives(first, first_near).await);
        let (last_near, last) = all.last_mut().unwrap();
        assert!(lives(last, last_near).await && lives(&mut newcomer, &mut near).await);
        assert!(
            lives(&mut known, &mut known_near).await && lives(&mut daemon, &mut daemon_near).await
        );
    }

    #[tokio::test]
    async fn listener_limits_connections_of_each_user() {
        let guests = Guests::new(EACH_MAX);
        let mut own: Vec<_> = (0..EACH_MAX)
            .map(|_| seated(&guests, PeerKind::User(7)))
            .collect();
        let (mut other_near, mut other) = seated(&guests, PeerKind::User(8));
        let (mut near, mut newcomer) = seated(&guests, PeerKind::Unauthenticated);
        newcomer.guest().introduce(PeerKind::User(7));
        let mut left = 0;
        for (near, seated) in &mut own {
            left += usize::from(lives(seated, near).await);
        }
        left += usize::from(lives(&mut newcomer, &mut near).await);
        assert_eq!(left, EACH_MAX);
        assert!(lives(&mut other, &mut other_near).await);
    }

    #[tokio::test]
    async fn listener_wakes_and_closes_slow_connection() {
        let guests = Guests::new(EACH_MAX);
        let (_near, mut slow) = seated(&guests, PeerKind::Unauthenticated);
        let (_daemon_near, daemon) = seated(&guests, PeerKind::Unauthenticated);
        daemon.guest().introduce(PeerKind::Daemon);
        let reading = tokio::spawn(async move { slow.read_u8().await });
        tokio::task::yield_now().await;
        while guests.0.now() == 0 {
            tokio::task::yield_now().await;
        }
        guests.0.close_slow(Duration::ZERO);
        assert!(reading.await.unwrap().is_err());
        // The other connection is authenticated, and both places are accounted for.
        assert!(!daemon.guest().seat.asked_to_go.load(Ordering::Acquire));
        assert_eq!(guests.0.all.lock().guests.len(), 1);
    }
}
