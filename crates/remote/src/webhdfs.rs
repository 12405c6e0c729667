//! HDFS through its REST interface, WebHDFS. OpenDAL's WebHDFS client is not used: it writes files under their final names, and deletes an
//! existing file before the new file has its name.

use crate::address::{encoded, join};
use crate::object_store::client;
use crate::redirects;
use crate::store::{PathType, SILENCE, StoreFile};
use crate::tree::{
    ProtocolError, TreeFuture, TreeName, TreeNames, TreeProtocol, TreeRoot, TreeStore, TreeUpload,
    timely,
};
use crate::{Error, Keys};
use bytes::Bytes;
use futures_util::stream;
use reqwest::{Body, Client, Method, RequestBuilder, Response, StatusCode};
use serde_json::Value;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Maximum length in bytes of an answer that is not the bytes of a file; a directory may have many names.
const REPORTED_BYTES_MAX: u64 = 4 << 20;
/// Maximum number of chunks of a file that wait to be sent.
const PIECES_MAX: usize = 2;

struct WebHdfsServer {
    client: Client,
    endpoint: String,
    root: TreeRoot,
    /// User or token, as a query parameter of each request.
    who: String,
    keys: Keys,
}

#[derive(Clone)]
struct WebHdfs(Arc<WebHdfsServer>);

pub(crate) fn open(endpoint: &str, root: &str, keys: &Keys) -> TreeStore {
    let who = match (keys.get("token"), keys.get("username")) {
        (Some(token), _) => format!("&delegation={}", encoded(token)),
        (None, Some(user)) => format!("&user.name={}", encoded(user)),
        (None, None) => String::new(),
    };
    let server = WebHdfsServer {
        client: client(),
        endpoint: endpoint.to_owned(),
        root: TreeRoot::new(root),
        who,
        keys: keys.clone(),
    };
    TreeStore::new(endpoint, WebHdfs(Arc::new(server)))
}

/// Returns the type and the tag of a file. HDFS never reuses the number of a file.
fn seen(path: &str, status: &Value) -> Result<PathType, ProtocolError> {
    let number = |name: &str| status[name].as_u64().unwrap_or(0);
    let path = path.to_owned();
    match status["type"].as_str() {
        Some("DIRECTORY") => Ok(PathType::Directory),
        Some("FILE") => {
            let (size, modified_ms) = (number("length"), number("modificationTime"));
            let object = StoreFile {
                path,
                size,
                tag: format!("{}-{size}-{modified_ms}", number("fileId")),
                checked_by_store: false,
            };
            let time = UNIX_EPOCH.checked_add(Duration::from_millis(modified_ms));
            Ok(PathType::File(object, time))
        }
        _ => Err(Error::NoFile {
            path,
            what: "a link",
        }
        .into()),
    }
}

impl WebHdfs {
    fn question(&self, method: Method, path: &str, what: &str) -> RequestBuilder {
        let server = &self.0;
        let full = encoded(&server.root.full(path));
        let url = format!(
            "{}/webhdfs/v1{full}?op={what}{}",
            server.endpoint, server.who
        );
        server.client.request(method, url)
    }

    /// Returns the answer to a request, or the error that the answer contains.
    async fn answer(
        &self,
        path: &str,
        question: RequestBuilder,
    ) -> Result<Response, ProtocolError> {
        let sent = timely(path, question.send()).await?;
        let answer = sent.map_err(|error| self.offline(path, error))?;
        if answer.status().is_success() {
            return Ok(answer);
        }
        let status = answer.status();
        let reported = self.whole(path, answer, REPORTED_BYTES_MAX).await;
        let reported = reported.unwrap_or_default();
        Err(self.refusal(path, status, &reported))
    }

    /// Reads a whole answer. Fails if the answer is longer than `most` bytes.
    async fn whole(&self, path: &str, answer: Response, most: u64) -> Result<Bytes, ProtocolError> {
        let whole = crate::object_store::whole(answer, most);
        let whole = tokio::time::timeout(SILENCE, whole).await;
        let whole = whole
            .map_err(|_| ProtocolError::offline(path, "the answer was incomplete after 60 s"))?;
        let whole = whole.map_err(|error| self.offline(path, error))?;
        whole.ok_or_else(|| {
            ProtocolError::from(Error::Store {
                path: path.to_owned(),
                reason: "the answer is longer than requested".into(),
            })
        })
    }

    async fn json(&self, path: &str, question: RequestBuilder) -> Result<Value, ProtocolError> {
        let answer = self.answer(path, question).await?;
        let whole = self.whole(path, answer, REPORTED_BYTES_MAX).await?;
        serde_json::from_slice(&whole).map_err(|_| {
            ProtocolError::from(Error::Store {
                path: path.to_owned(),
                reason: "the server does not speak WebHDFS: the answer is not JSON".into(),
            })
        })
    }

    fn offline(&self, path: &str, error: reqwest::Error) -> ProtocolError {
        // The address contains the token, so errors must not contain the address.
        let error = error.without_url();
        let mut reason = error.to_string();
        let mut source = std::error::Error::source(&error);
        while let Some(below) = source {
            reason = format!("{reason}: {below}");
            source = below.source();
        }
        ProtocolError::offline(path, self.0.keys.scrubbed(&reason))
    }

    fn refusal(&self, path: &str, status: StatusCode, reported: &[u8]) -> ProtocolError {
        let reported: Value = serde_json::from_slice(reported).unwrap_or_default();
        let reported = &reported["RemoteException"];
        let exception = reported["exception"].as_str().unwrap_or_default();
        let message = reported["message"].as_str().unwrap_or_default();
        let message = message.lines().next().unwrap_or_default();
        let reported = format!("{status} {exception} {message}");
        let (path, reason) = (path.to_owned(), self.0.keys.reason(&reported));
        let not_below = message.contains("not a directory");
        match exception {
            "FileNotFoundException" | "ParentNotDirectoryException" => Error::Missing(path),
            _ if not_below => Error::Missing(path),
            "FileAlreadyExistsException" => Error::Changed(path),
            "AccessControlException" => Error::Denied { path, reason },
            "SecurityException" | "InvalidToken" | "AuthenticationException" => {
                Error::Refused { path, reason }
            }
            _ if status == StatusCode::UNAUTHORIZED => Error::Refused { path, reason },
            "StandbyException" | "RetriableException" | "SafeModeException" => {
                return ProtocolError::offline(&path, reason);
            }
            _ if status.is_server_error() && exception.is_empty()
                || status == StatusCode::TOO_MANY_REQUESTS =>
            {
                return ProtocolError::offline(&path, reason);
            }
            _ => Error::Store { path, reason },
        }
        .into()
    }

    async fn status(&self, path: &str) -> Result<PathType, ProtocolError> {
        let question = self.question(Method::GET, path, "GETFILESTATUS");
        let status = self.json(path, question).await?;
        seen(path, &status["FileStatus"])
    }

    /// Returns the address of the data node for a read or write of a file.
    async fn location(
        &self,
        method: Method,
        path: &str,
        what: &str,
    ) -> Result<String, ProtocolError> {
        let question = self.question(method, path, &format!("{what}&noredirect=true"));
        let reply = self.json(path, question).await?;
        let location = reply["Location"].as_str().unwrap_or_default();
        let named = timely(path, redirects::allowed_url(&self.0.endpoint, location)).await?;
        named.map(String::from).map_err(|reason| {
            ProtocolError::from(Error::Store {
                path: path.to_owned(),
                reason,
            })
        })
    }
}

impl TreeProtocol for WebHdfs {
    fn look<'a>(&'a self, path: &'a str) -> TreeFuture<'a, PathType> {
        Box::pin(self.status(path))
    }

    fn names<'a>(&'a self, path: &'a str) -> TreeFuture<'a, Box<dyn TreeNames>> {
        Box::pin(async move {
            self.status(path).await?.directory(path)?;
            Ok(Box::new(WebHdfsListing {
                server: self.clone(),
                path: path.to_owned(),
                after: Some(String::new()),
            }) as Box<dyn TreeNames>)
        })
    }

    fn range<'a>(&'a self, object: &'a StoreFile, from: u64, count: u64) -> TreeFuture<'a, Bytes> {
        Box::pin(async move {
            let path = object.path.as_str();
            let what = format!("OPEN&offset={from}&length={count}");
            let location = self.location(Method::GET, path, &what).await?;
            let answer = self.answer(path, self.0.client.get(location)).await?;
            let length = answer.content_length();
            if length.is_some_and(|length| length > count) {
                return Err(Error::Changed(path.to_owned()).into());
            }
            let bytes = self.whole(path, answer, count).await?;
            self.status(path).await?.still(object)?;
            Ok(bytes)
        })
    }

    fn begin<'a>(&'a self, path: &'a str) -> TreeFuture<'a, Box<dyn TreeUpload>> {
        Box::pin(async move {
            // The server creates missing parent directories. The directory of the store itself must exist already.
            self.status("").await?;
            let what = "CREATE&overwrite=false";
            let location = self.location(Method::PUT, path, what).await?;
            let (pieces, mut sending) = mpsc::channel::<Bytes>(PIECES_MAX);
            let pieces_of = stream::poll_fn(move |context| {
                sending
                    .poll_recv(context)
                    .map(|piece| piece.map(Ok::<_, std::io::Error>))
            });
            let put = self
                .0
                .client
                .put(location)
                .body(Body::wrap_stream(pieces_of));
            let (server, path) = (self.clone(), path.to_owned());
            let written = tokio::spawn(async move {
                let sent = put.send().await;
                let answer = sent.map_err(|error| server.offline(&path, error))?;
                let status = answer.status();
                let reported = server.whole(&path, answer, REPORTED_BYTES_MAX).await?;
                match status {
                    StatusCode::CREATED => Ok(()),
                    _ => Err(server.refusal(&path, status, &reported)),
                }
            });
            Ok(Box::new(WebHdfsWriter {
                pieces: Some(pieces),
                written,
            }) as Box<dyn TreeUpload>)
        })
    }

    fn rename<'a>(&'a self, path: &'a str, other: &'a str, over: bool) -> TreeFuture<'a, ()> {
        Box::pin(async move {
            let how = if over { "OVERWRITE" } else { "NONE" };
            let other = encoded(&self.0.root.full(other));
            let what = format!("RENAME&destination={other}&renameoptions={how}");
            let question = self.question(Method::PUT, path, &what);
            self.answer(path, question).await.map(drop)
        })
    }

    fn remove<'a>(&'a self, path: &'a str) -> TreeFuture<'a, ()> {
        Box::pin(async move {
            self.status(path).await?.file(path)?;
            let question = self.question(Method::DELETE, path, "DELETE&recursive=false");
            match self.json(path, question).await?["boolean"].as_bool() {
                Some(true) => Ok(()),
                _ => Err(Error::Missing(path.to_owned()).into()),
            }
        })
    }
}

/// Listing of a directory in progress, with 1000 names per page unless the server has another limit.
struct WebHdfsListing {
    server: WebHdfs,
    path: String,
    /// Last returned name; `None` at the end of the listing.
    after: Option<String>,
}

impl TreeNames for WebHdfsListing {
    fn next(&mut self) -> TreeFuture<'_, Option<Vec<TreeName>>> {
        Box::pin(async move {
            let Some(after) = &self.after else {
                return Ok(None);
            };
            let what = match after.as_str() {
                "" => "LISTSTATUS_BATCH".to_owned(),
                after => format!("LISTSTATUS_BATCH&startAfter={}", encoded(after)),
            };
            let question = self.server.question(Method::GET, &self.path, &what);
            let reply = self.server.json(&self.path, question).await?;
            let reply = &reply["DirectoryListing"];
            let listed = reply["partialListing"]["FileStatuses"]["FileStatus"].as_array();
            let listed = listed.map(Vec::as_slice).unwrap_or_default();
            let names: Vec<_> = listed.iter().map(|status| self.name(status)).collect();
            let more = reply["remainingEntries"].as_u64().unwrap_or(0) > 0;
            let last = names.last().filter(|_| more).map(|last| last.name.clone());
            if last.is_some() && last == self.after {
                return Err(ProtocolError::from(Error::Store {
                    path: self.path.clone(),
                    reason: "the server returns the same names again and again".into(),
                }));
            }
            self.after = last;
            Ok(Some(names))
        })
    }
}

impl WebHdfsListing {
    fn name(&self, status: &Value) -> TreeName {
        let name = status["pathSuffix"].as_str().unwrap_or_default().to_owned();
        let seen = seen(&join(&self.path, &name), status).map_err(|_| "a link");
        TreeName { name, seen }
    }
}

/// File that is being written, in one request to a data node.
struct WebHdfsWriter {
    pieces: Option<mpsc::Sender<Bytes>>,
    written: JoinHandle<Result<(), ProtocolError>>,
}

impl WebHdfsWriter {
    async fn ended(&mut self) -> Result<(), ProtocolError> {
        let ended = (&mut self.written).await;
        ended.unwrap_or_else(|error| Err(ProtocolError::offline("", error.to_string())))
    }
}

impl TreeUpload for WebHdfsWriter {
    fn write(&mut self, bytes: Bytes) -> TreeFuture<'_, ()> {
        Box::pin(async move {
            let sent = match &self.pieces {
                Some(pieces) => tokio::time::timeout(SILENCE, pieces.send(bytes)).await,
                None => return Err(ProtocolError::offline("", "it was aborted")),
            };
            match sent {
                Ok(Ok(())) => Ok(()),
                Ok(Err(_)) => {
                    self.pieces = None;
                    self.ended().await?;
                    Err(ProtocolError::offline(
                        "",
                        "the server ended the request early",
                    ))
                }
                Err(_) => Err(ProtocolError::offline(
                    "",
                    "the server accepts no more data",
                )),
            }
        })
    }

    fn finish(mut self: Box<Self>) -> TreeFuture<'static, ()> {
        Box::pin(async move {
            self.pieces = None;
            timely("", self.ended()).await?
        })
    }
}

impl Drop for WebHdfsWriter {
    fn drop(&mut self) {
        self.written.abort();
    }
}
