//! The node's one connection to the server: `Cluster.Attach`. The module passes the server's messages to the node and sends the
//! node's reports (next: `server/src/cluster.rs`).
//!
//! The node always opens a broken connection again. The node then sends the labels that it knows and all outcomes that were not
//! acknowledged. So the node or the server repeats each message that was lost with a connection; ids make the repetition harmless.

use crate::daemon::Daemon;
use crate::error::Error;
use crate::task::now;
use std::sync::Arc;
use std::time::Duration;
use tidemill_client::Server;
use tidemill_model::backoff::Backoff;
use tidemill_model::id::LabelId;
use tidemill_wire::PROTOCOL_VERSION;
use tidemill_wire::capability::CapabilityKey;
use tidemill_wire::condition;
use tidemill_wire::v1::{self, from_node, to_node::Message};
use tokio_stream::wrappers::UnboundedReceiverStream;

/// Pauses before the connection is opened again.
pub(crate) const RECONNECT: Backoff =
    Backoff::new(Duration::from_millis(50), Duration::from_secs(3));

/// Time limit for the server to accept the message that the node is suspended.
const LAST_WORD: Duration = Duration::from_secs(5);

/// Reason why the connection to the server ended.
#[derive(Debug, thiserror::Error)]
enum DisconnectReason {
    /// The node can't continue.
    #[error(transparent)]
    Fatal(#[from] Error),
    /// The server can't be reached or refuses the connection.
    #[error(transparent)]
    Client(#[from] tidemill_client::Error),
    /// The server ended the connection.
    #[error("the server ended the connection")]
    Closed,
    /// The key in the server's first message is invalid.
    #[error("the server's first message is invalid: {0}")]
    Key(#[from] tidemill_wire::capability::CapabilityRefusal),
}

/// Stays connected to the server until the node can't continue. Returns the reason.
pub(crate) async fn stay(daemon: Arc<Daemon>) -> Error {
    let mut pauses = RECONNECT;
    let mut logged = None;
    loop {
        let mut welcomed = false;
        let ended = session(&daemon, &mut welcomed).await;
        daemon.parts().reports.disconnect();
        if welcomed {
            pauses.reset();
            logged = None;
        }
        match ended {
            DisconnectReason::Fatal(error) => return error,
            error if logged == Some(error.to_string()) => {
                tracing::debug!(%error, "no connection to the server yet");
            }
            // A server that was lost may return with an identity that can't be trusted. That is a new problem to log.
            error => {
                tracing::warn!(%error, node = %daemon.config.node, "no connection to the server; retrying without end");
                logged = Some(error.to_string());
            }
        }
        tokio::time::sleep(pauses.pause()).await;
    }
}

async fn session(daemon: &Arc<Daemon>, welcomed: &mut bool) -> DisconnectReason {
    match attach(daemon, welcomed).await {
        Ok(never) => match never {},
        Err(ended) => ended,
    }
}

async fn attach(
    daemon: &Arc<Daemon>,
    welcomed: &mut bool,
) -> Result<std::convert::Infallible, DisconnectReason> {
    let server = Server::connect(&daemon.config.server, daemon.config.credential.as_ref()).await?;
    if let Some(trust) = server.trust() {
        daemon.parts().fetcher.set_trust(trust);
    }
    let outgoing = UnboundedReceiverStream::new(daemon.parts().reports.connect(hello(daemon)?));
    let incoming = server.cluster().attach(outgoing).await;
    let mut incoming = match incoming {
        Ok(incoming) => incoming.into_inner(),
        Err(status) if condition::NODE_REMOVED.is_cause_of(&status) => {
            return Err(daemon.leave().await.into());
        }
        Err(status) => return Err(server.explain(status).into()),
    };
    loop {
        let message = incoming.message().await;
        let message = message.map_err(|status| server.explain(status))?;
        match message.ok_or(DisconnectReason::Closed)?.message {
            Some(Message::Welcome(welcome)) => {
                on_welcome(daemon, &welcome).await?;
                *welcomed = true;
            }
            Some(Message::Suspend(suspend)) => {
                if let Err(why) = daemon.may_suspend(Duration::from_nanos(suspend.quiet_ns)) {
                    let stays = from_node::Message::Stays(v1::Stays { why });
                    daemon.parts().reports.send(stays);
                    continue;
                }
                let suspended = from_node::Message::Suspended(v1::Suspended {});
                daemon.parts().reports.send(suspended);
                // The server ends the connection when it has received the message. If not, the message is repeated with the next
                // connection.
                let heard = async { while let Ok(Some(_)) = incoming.message().await {} };
                let _ = tokio::time::timeout(LAST_WORD, heard).await;
                return Err(Error::Suspended.into());
            }
            Some(message) => on_message(daemon, message),
            None => tracing::warn!(
                "the server sent a message of a kind that this release does not know"
            ),
        }
    }
}

fn hello(daemon: &Daemon) -> Result<v1::Hello, Error> {
    let known = daemon.labels().known()?;
    let used = daemon.labels().used_ids()?;
    Ok(v1::Hello {
        version: PROTOCOL_VERSION,
        node: Some(daemon.describe()),
        cluster_id: daemon.cluster(),
        labels: known.iter().map(|record| record.id.0).collect(),
        used: Some(used),
        suspended: false,
        public_key: daemon.public_key().to_vec(),
    })
}

async fn on_welcome(daemon: &Daemon, welcome: &v1::Welcome) -> Result<(), DisconnectReason> {
    daemon
        .join(welcome.cluster_id, CapabilityKey::from_slice(&welcome.key)?)
        .await?;
    daemon.renew(&welcome.certificate).await?;
    daemon
        .clocks
        .heard(u64::try_from(welcome.time_ns).unwrap_or(0));
    tracing::info!(node = %daemon.config.node, url = %daemon.url, "attached to cluster {:016x}", welcome.cluster_id);
    daemon.labels().report().map_err(Error::from)?;
    Ok(())
}

fn on_message(daemon: &Arc<Daemon>, message: Message) {
    match message {
        // The session handles these messages itself, as it must wait for them.
        Message::Welcome(_) | Message::Suspend(_) => {}
        // The node is active already.
        Message::Resume(_) => {}
        Message::Labels(labels) => daemon.labels().accept(labels.labels),
        Message::Abort(abort) => daemon.labels().abort(LabelId(abort.label)),
        Message::Reschedule(reschedule) => daemon.labels().reschedule(LabelId(reschedule.label)),
        Message::Ack(ack) => {
            let labels = ack.labels.into_iter().map(LabelId).collect();
            daemon.labels().acknowledge(labels);
        }
        Message::FindPrograms(mut find) => {
            let daemon = Arc::clone(daemon);
            tokio::task::spawn_blocking(move || {
                let parts = daemon.parts();
                find.names.extend(parts.runner.offers(&find.names));
                let has = |name: &str| parts.runner.has_program(name);
                parts.programs.answer(find, has, |programs| {
                    let programs = from_node::Message::Programs(programs);
                    parts.reports.send(programs);
                });
            });
        }
        Message::Probe(probe) => {
            let daemon = Arc::clone(daemon);
            tokio::task::spawn_blocking(move || {
                let probed = daemon.probe(&probe);
                let reports = &daemon.parts().reports;
                reports.send(from_node::Message::Probed(probed));
            });
        }
        Message::Files(files) => {
            if let Some(backend) = &daemon.parts().backend {
                backend.on_files(files.files);
            }
        }
        Message::Log(copy) => {
            let daemon = Arc::clone(daemon);
            tokio::task::spawn_blocking(move || {
                let copied = daemon.log_copies.store(&copy);
                let copied = from_node::Message::Log(copied);
                daemon.parts().reports.send(copied);
            });
        }
        Message::Revoke(revoke) => daemon.revoked.on_revoke(&revoke, now().0),
        Message::Peers(peers) => daemon.parts().fetcher.set_peers(peers),
    }
}
