//! gRPC service of tokens: checks the rights to create, list and revoke tokens. Next: `server/src/tokens.rs`, which stores the tokens.

use crate::access::{Access, Peer};
use crate::ca::Ca;
use crate::namespace_service::refused;
use crate::tokens::{NewToken, TokensError};
use std::sync::Arc;
use tidemill_client::Credential;
use tidemill_meta::Fault;
use tidemill_meta::commit::Database;
use tidemill_wire::v1;
use tonic::{Request, Response, Status};

/// The gRPC service of tokens.
#[derive(Clone, Debug)]
pub(crate) struct TokenService {
    pub(crate) access: Arc<Access>,
    pub(crate) ca: Arc<Ca>,
    pub(crate) database: Arc<Database>,
}

impl TokenService {
    /// Adds the changed tokens to the log, from which a lost server is recovered, and waits until a replicated log has them.
    async fn log(&self) -> Result<(), Status> {
        let database = self.database.clone();
        let logged = tokio::task::spawn_blocking(move || database.log_files()).await;
        let logged = logged.unwrap_or(Err(Fault::Closed));
        logged.map_err(|fault| refused(&fault))
    }
}

impl From<TokensError> for Status {
    fn from(error: TokensError) -> Self {
        match error {
            TokensError::File { .. } | TokensError::Broken { .. } => {
                Self::internal(error.to_string())
            }
            TokensError::Full(_) => Self::resource_exhausted(error.to_string()),
            TokensError::Note | TokensError::Expired => Self::invalid_argument(error.to_string()),
        }
    }
}

/// Whether a peer may list and revoke the tokens of the user `uid`.
fn rules(peer: &Peer, uid: Option<u32>) -> bool {
    peer.administrator || uid == Some(peer.uid)
}

fn not_yours() -> Status {
    Status::permission_denied(
        "only an administrator may create, list and revoke tokens of other users",
    )
}

/// Runs work that writes a file, which may take as long as a disk access, without blocking other asynchronous tasks.
async fn kept<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, TokensError> + Send + 'static,
) -> Result<T, Status> {
    let done = tokio::task::spawn_blocking(work).await;
    Ok(done.map_err(|_| Status::unavailable("the server is shutting down"))??)
}

#[tonic::async_trait]
impl v1::tokens_server::Tokens for TokenService {
    async fn create(
        &self,
        request: Request<v1::CreateTokenRequest>,
    ) -> Result<Response<v1::CreateTokenReply>, Status> {
        let peer = self.access.peer(&request)?;
        let v1::CreateTokenRequest {
            uid,
            read_only,
            expires,
            note,
        } = request.into_inner();
        if !rules(&peer, uid) {
            return Err(not_yours());
        }
        // Otherwise a token that expires, or only reads, could create one without these limits.
        if !peer.administrator && peer.token.is_some() {
            return Err(Status::permission_denied(
                "a token can't create tokens: create it on the server's own host, or ask an administrator",
            ));
        }
        if uid.is_none() && read_only {
            return Err(Status::invalid_argument(
                "a read-only token belongs to a user: name the user",
            ));
        }
        let wanted = NewToken {
            uid,
            read_only,
            expires,
            note,
        };
        let access = self.access.clone();
        let (token, secret) = kept(move || access.tokens().create(wanted)).await?;
        self.log().await?;
        tracing::info!(
            token = token.number(),
            ?uid,
            by = peer.uid,
            "a token was created"
        );
        Ok(Response::new(v1::CreateTokenReply {
            token: Some(token.shown()),
            credential: Credential::text(&secret, self.ca.pem()),
        }))
    }

    async fn list(
        &self,
        request: Request<v1::ListTokensRequest>,
    ) -> Result<Response<v1::ListTokensReply>, Status> {
        let peer = self.access.peer(&request)?;
        let mut uid = request.into_inner().uid;
        if !peer.administrator {
            uid = uid.or(Some(peer.uid));
        }
        if !rules(&peer, uid) {
            return Err(not_yours());
        }
        let tokens = self.access.tokens().list(uid);
        Ok(Response::new(v1::ListTokensReply {
            tokens: tokens.iter().map(|token| token.shown()).collect(),
        }))
    }

    async fn revoke(
        &self,
        request: Request<v1::RevokeTokenRequest>,
    ) -> Result<Response<v1::AccessToken>, Status> {
        let peer = self.access.peer(&request)?;
        let number = request.into_inner().token;
        let token = self.access.tokens().get(number);
        let token = token.filter(|token| rules(&peer, token.uid()));
        let token = token.ok_or_else(|| {
            Status::not_found(format!(
                "token {number} does not exist, or you may not revoke it"
            ))
        })?;
        let (access, ended) = (self.access.clone(), token.clone());
        kept(move || access.tokens().revoke(&ended)).await?;
        self.log().await?;
        tracing::info!(token = number, by = peer.uid, "a token was revoked");
        Ok(Response::new(token.shown()))
    }
}
