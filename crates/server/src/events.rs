//! gRPC service of file events, which are read from the feed with the client's cursor. Only matching changes wake a waiting client (next:
//! `feed.rs`).

use crate::access::Access;
use crate::clock;
use crate::feed::{FeedWaiters, Interest};
use crate::namespace_service::refused;
use std::sync::Arc;
use std::time::Duration;
use tidemill_meta::budget::AccessLimits;
use tidemill_meta::feed::{self, ANSWER_MAX, EventCursor, EventPage};
use tidemill_meta::transaction::Tx;
use tidemill_meta::{Caller, Connection, SqliteNames};
use tidemill_model::glob::Pattern;
use tidemill_wire::v1;
use tokio::time::Instant;
use tonic::{Request, Response, Status};

/// Maximum wait of one call. The client then continues with the cursor in the answer.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// Maximum number of waiting calls.
const WAITING_MAX: usize = 1024;
/// Maximum number of waiting calls of one user.
const WAITING_EACH_MAX: usize = 256;
/// Maximum number of pages of stored file events that one call examines. The client continues with the cursor in the answer.
const PAGES_MAX: usize = 64;
const MICROSECOND_NS: i64 = 1000;

/// The gRPC service of file events.
#[derive(Clone, Debug)]
pub(crate) struct EventService {
    names: Arc<SqliteNames>,
    access: Arc<Access>,
    waiters: Arc<FeedWaiters>,
    space: Arc<AccessLimits>,
}

impl EventService {
    pub(crate) fn new(
        names: &Arc<SqliteNames>,
        access: &Arc<Access>,
        waiters: &Arc<FeedWaiters>,
    ) -> Self {
        Self {
            names: names.clone(),
            access: access.clone(),
            waiters: waiters.clone(),
            space: AccessLimits::new(WAITING_MAX, WAITING_EACH_MAX),
        }
    }

    fn cursor(&self, since: &str) -> Result<Option<EventCursor>, Status> {
        if since.is_empty() {
            return Ok(None);
        }
        let cursor = since.parse::<EventCursor>().map_err(|()| {
            Status::invalid_argument(format!(
                "{since:?} is not a cursor: give a cursor from an earlier answer, or no cursor to begin now"
            ))
        })?;
        let now = clock::now_ns() / MICROSECOND_NS;
        let last = self.names.database().read(feed::last);
        let last = last.map_err(|fault| refused(&fault))?;
        if cursor.number > last.max(now) {
            return Err(Status::invalid_argument(format!(
                "cursor {since} is in the future: does it belong to another cluster?"
            )));
        }
        Ok(Some(cursor))
    }

    /// Returns the file events after the cursor: up to the first matches, up to the last event, or up to the limit of one call.
    async fn look(
        &self,
        caller: &Caller,
        pattern: &Pattern,
        since: EventCursor,
        limit: usize,
    ) -> Result<EventPage, Status> {
        let (mut since, mut pages) = (since, 0);
        loop {
            let names = &self.names;
            let look = |db: &Connection| {
                let tx = Tx::new(db, names.shared(), caller, 0, clock::now_ns());
                tx.events(pattern, &since, limit)
            };
            let page = names.database().read_for(caller, look).await;
            let page = page.map_err(|fault| refused(&fault))?;
            pages += 1;
            if page.missed || !page.events.is_empty() || !page.more || pages == PAGES_MAX {
                return Ok(page);
            }
            since = page.cursor;
            tokio::task::yield_now().await;
        }
    }

    async fn awaited(
        &self,
        caller: &Caller,
        pattern: &Pattern,
        since: EventCursor,
        (limit, until): (usize, Instant),
    ) -> Result<EventPage, Status> {
        let waiter = self
            .waiters
            .enter(&self.names, Interest::Events(pattern.clone()))?;
        let mut since = since;
        loop {
            let page = self.look(caller, pattern, since, limit).await?;
            if page.missed || !page.events.is_empty() || page.more {
                return Ok(page);
            }
            let heard = tokio::time::timeout_at(until, waiter.woken()).await;
            if heard.is_err() {
                return Ok(page);
            }
            since = page.cursor;
        }
    }
}

#[tonic::async_trait]
impl v1::events_server::Events for EventService {
    async fn next(
        &self,
        request: Request<v1::EventsRequest>,
    ) -> Result<Response<v1::EventsReply>, Status> {
        let credentials = request.get_ref().credentials.as_ref();
        let caller = self.access.caller(&request, credentials)?;
        let request = request.into_inner();
        let text = request.pattern.trim_start_matches('/');
        let pattern = Pattern::new(text).map_err(|error| {
            Status::invalid_argument(format!("pattern {:?}: {error}", request.pattern))
        })?;
        let Some(since) = self.cursor(&request.since)? else {
            let last = self.names.database().read(feed::last);
            let last = last.map_err(|fault| refused(&fault))?;
            return Ok(Response::new(v1::EventsReply {
                cursor: last.to_string(),
                ..v1::EventsReply::default()
            }));
        };
        let Some(_space) = self.space.enter(caller.uid) else {
            return Err(Status::resource_exhausted(format!(
                "too many calls wait for file events: at most {WAITING_MAX} may wait, and {WAITING_EACH_MAX} of one user; try again later"
            )));
        };
        let limit = usize::try_from(request.limit).unwrap_or(ANSWER_MAX);
        let limit = if limit == 0 {
            ANSWER_MAX
        } else {
            limit.min(ANSWER_MAX)
        };
        let until = Instant::now() + Duration::from_nanos(request.wait_ns).min(WAIT_MAX);
        let page = self
            .awaited(&caller, &pattern, since, (limit, until))
            .await?;
        Ok(Response::new(v1::EventsReply {
            events: page.events,
            cursor: page.cursor.to_string(),
            missed: page.missed,
        }))
    }
}
