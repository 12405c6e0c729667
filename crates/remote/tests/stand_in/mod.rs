//! Fake server with parts of S3 and HTTP, and with faults on request.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Fault that the server produces in place of an answer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// The server answers with this HTTP status.
    Status(u16),
    /// The server sends half of the answer, then closes the connection.
    Cut,
}

/// File that is uploaded in parts.
#[derive(Debug, Default)]
pub(crate) struct Upload {
    pub(crate) key: String,
    /// Start time of the upload, as S3 writes it.
    pub(crate) begun: String,
    pub(crate) parts: BTreeMap<u32, Vec<u8>>,
}

/// Fault after a number of further requests.
#[derive(Debug)]
pub(crate) struct Strike {
    pub(crate) left: usize,
    /// Whether the request is executed. The request is never answered.
    pub(crate) done: bool,
    pub(crate) sender: Sender<()>,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    /// Content of each object by key, and the number of the write.
    pub(crate) objects: BTreeMap<String, (Vec<u8>, u64)>,
    writes: u64,
    /// Multipart uploads by id.
    pub(crate) uploads: BTreeMap<String, Upload>,
    /// Faults of the next reads of content, in the order of the reads.
    pub(crate) faults: VecDeque<Fault>,
    /// Number of an upload's part that is always refused.
    pub(crate) bad_part: Option<u32>,
    /// Key id that requests to the bucket must have.
    pub(crate) key: Option<String>,
    pub(crate) lists: usize,
    /// Number of list requests that are answered; later list requests wait until the number is raised.
    pub(crate) lists_given: Option<usize>,
    /// Answer to all requests to the bucket: a status, and S3's name of the error. The answer asks the client to retry after a second.
    pub(crate) deny: Option<(u16, &'static str)>,
    /// Number of answers that `deny` has caused.
    pub(crate) denied: usize,
    /// Number of requested ranges of content, by key.
    pub(crate) reads: BTreeMap<String, usize>,
    /// Whether requests are never answered.
    pub(crate) silent: bool,
    /// Whether uploads are executed but not answered.
    pub(crate) mute: bool,
    pub(crate) strike: Option<Strike>,
}

#[derive(Clone, Debug)]
pub(crate) struct StandIn {
    pub(crate) address: String,
    state: Arc<Mutex<State>>,
}

struct Request {
    method: String,
    path: String,
    query: BTreeMap<String, String>,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

struct Reply {
    status: u16,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
    cut: bool,
}

fn reply(status: u16, body: impl Into<Vec<u8>>) -> Reply {
    Reply {
        status,
        headers: Vec::new(),
        body: body.into(),
        cut: false,
    }
}

fn decoded(text: &str) -> String {
    let (mut out, bytes) = (Vec::new(), text.as_bytes());
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'%' => {
                out.push(u8::from_str_radix(&text[at + 1..at + 3], 16).unwrap());
                at += 3;
            }
            b'+' => {
                out.push(b' ');
                at += 1;
            }
            byte => {
                out.push(byte);
                at += 1;
            }
        }
    }
    String::from_utf8(out).unwrap()
}

impl StandIn {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stand_in = Self {
            address: listener.local_addr().unwrap().to_string(),
            state: Arc::default(),
        };
        let serving = stand_in.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let serving = serving.clone();
                tokio::spawn(async move { serving.serve(stream).await });
            }
        });
        stand_in
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub(crate) fn put(&self, key: &str, content: Vec<u8>) {
        self.state().put(key, content);
    }

    pub(crate) fn s3(&self) -> String {
        format!("s3://bucket/?endpoint=http://{}", self.address)
    }

    async fn serve(&self, mut stream: TcpStream) -> Option<()> {
        let request = read(&mut stream).await?;
        if self.state().silent {
            std::future::pending::<()>().await;
        }
        while request.query.contains_key("list-type") && self.state().holds_lists() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let struck = self.state().struck();
        if let Some(strike) = struck {
            if strike.done {
                self.state().answer(&request);
            }
            // The receiver may have ended.
            let _ = strike.sender.send(());
            std::future::pending::<()>().await;
        }
        let denied = self.state().denial(&request);
        let reply = denied.unwrap_or_else(|| self.state().answer(&request));
        if self.state().mute && request.method == "PUT" {
            std::future::pending::<()>().await;
        }
        let mut head = format!("HTTP/1.1 {} X\r\nconnection: close\r\n", reply.status);
        let length = match reply.headers.iter().find(|(name, _)| *name == "length") {
            Some((_, length)) => length.clone(),
            None => reply.body.len().to_string(),
        };
        write!(head, "content-length: {length}\r\n").unwrap();
        for (name, value) in reply.headers.iter().filter(|(name, _)| *name != "length") {
            write!(head, "{name}: {value}\r\n").unwrap();
        }
        stream
            .write_all(format!("{head}\r\n").as_bytes())
            .await
            .ok()?;
        let end = if reply.cut {
            reply.body.len() / 2
        } else {
            reply.body.len()
        };
        stream.write_all(&reply.body[..end]).await.ok()?;
        stream.shutdown().await.ok()
    }
}

async fn read(stream: &mut TcpStream) -> Option<Request> {
    let mut all = Vec::new();
    let end = loop {
        if let Some(at) = all.windows(4).position(|four| four == b"\r\n\r\n") {
            break at;
        }
        if stream.read_buf(&mut all).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8(all[..end].to_vec()).unwrap();
    let mut lines = head.split("\r\n");
    let mut first = lines.next()?.split(' ');
    let (method, target) = (first.next()?.to_owned(), first.next()?.to_owned());
    let headers: BTreeMap<String, String> = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
        .collect();
    let mut body = all[end + 4..].to_vec();
    let length = headers
        .get("content-length")
        .map_or(0, |length| length.parse().unwrap());
    while body.len() < length {
        if stream.read_buf(&mut body).await.ok()? == 0 {
            return None;
        }
    }
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let query = query.split('&').filter(|pair| !pair.is_empty());
    let query = query.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    Some(Request {
        method,
        path: decoded(path),
        query: query
            .map(|(name, value)| (name.to_owned(), decoded(value)))
            .collect(),
        headers,
        body,
    })
}

impl State {
    fn put(&mut self, key: &str, content: Vec<u8>) -> String {
        self.writes += 1;
        self.objects.insert(key.to_owned(), (content, self.writes));
        format!("\"e{}\"", self.writes)
    }

    fn holds_lists(&self) -> bool {
        self.lists_given.is_some_and(|given| self.lists >= given)
    }

    fn struck(&mut self) -> Option<Strike> {
        let strike = self.strike.as_mut()?;
        match strike.left {
            0 => self.strike.take(),
            _ => {
                strike.left -= 1;
                None
            }
        }
    }

    fn denial(&mut self, request: &Request) -> Option<Reply> {
        let (status, code) = self.deny.filter(|_| request.path.starts_with("/bucket"))?;
        self.denied += 1;
        let body = format!("<Error><Code>{code}</Code><Message>no</Message></Error>");
        let mut denied = reply(status, body);
        denied.headers.push(("retry-after", "1".into()));
        Some(denied)
    }

    fn answer(&mut self, request: &Request) -> Reply {
        let shown = request
            .headers
            .get("authorization")
            .cloned()
            .unwrap_or_default();
        if let Some(key) = &self.key
            && request.path.starts_with("/bucket")
            && !shown.contains(&format!("Credential={key}/"))
        {
            let body = format!(
                "<Error><Code>SignatureDoesNotMatch</Code><Message>not {shown}</Message></Error>"
            );
            return reply(403, body);
        }
        let key = request
            .path
            .strip_prefix("/bucket/")
            .or(request.path.strip_prefix('/'));
        let key = key.unwrap_or_default();
        let upload = request.query.get("uploadId").cloned();
        match (request.method.as_str(), upload) {
            ("GET", _) if request.query.contains_key("list-type") => self.list(request),
            ("GET", _) if request.query.contains_key("uploads") => self.list_uploads(request),
            ("GET" | "HEAD", _) => self.content(key, request),
            ("PUT", Some(upload)) => self.part(&upload, request),
            ("PUT", None) if request.headers.contains_key("x-amz-copy-source") => {
                self.copy(&request.headers["x-amz-copy-source"], key)
            }
            ("PUT", None) if !self.may_put(key, request) => {
                reply(412, "<Error><Code>PreconditionFailed</Code></Error>")
            }
            ("PUT", None) => {
                let etag = self.put(key, request.body.clone());
                let mut done = reply(200, "");
                done.headers.push(("etag", etag));
                done
            }
            ("POST", Some(upload)) => self.end_upload(&upload, key),
            ("POST", None) => self.begin_upload(key),
            ("DELETE", Some(upload)) => {
                self.uploads.remove(&upload);
                reply(204, "")
            }
            ("DELETE", None) => {
                self.objects.remove(key);
                reply(204, "")
            }
            _ => reply(405, ""),
        }
    }

    fn begin_upload(&mut self, key: &str) -> Reply {
        self.writes += 1;
        let id = format!("u{}", self.writes);
        let upload = Upload {
            key: key.to_owned(),
            begun: "2100-01-01T00:00:00.000Z".into(),
            ..Upload::default()
        };
        self.uploads.insert(id.clone(), upload);
        let text = format!(
            "<InitiateMultipartUploadResult><UploadId>{id}</UploadId></InitiateMultipartUploadResult>"
        );
        reply(200, text)
    }

    fn end_upload(&mut self, upload: &str, key: &str) -> Reply {
        let Some(Upload { parts, .. }) = self.uploads.remove(upload) else {
            return reply(404, "<Error><Code>NoSuchUpload</Code></Error>");
        };
        let etag = self.put(key, parts.into_values().flatten().collect());
        let text = format!(
            "<CompleteMultipartUploadResult><Bucket>bucket</Bucket><Key>{key}</Key><ETag>{etag}</ETag></CompleteMultipartUploadResult>"
        );
        reply(200, text)
    }

    /// Returns whether a request may replace the existing object.
    fn may_put(&self, key: &str, request: &Request) -> bool {
        let now = self
            .objects
            .get(key)
            .map(|(_, version)| format!("\"e{version}\""));
        let wanted = request.headers.get("if-match");
        let alone = request.headers.contains_key("if-none-match");
        wanted.is_none_or(|wanted| now.as_ref() == Some(wanted)) && !(alone && now.is_some())
    }

    fn copy(&mut self, source: &str, key: &str) -> Reply {
        let source = decoded(source);
        let source = source.trim_start_matches('/').strip_prefix("bucket/");
        let found = source.and_then(|source| self.objects.get(source)).cloned();
        let Some((content, _)) = found else {
            return reply(404, "<Error><Code>NoSuchKey</Code></Error>");
        };
        let etag = self.put(key, content);
        let text = format!("<CopyObjectResult><ETag>{etag}</ETag></CopyObjectResult>");
        reply(200, text)
    }

    fn part(&mut self, upload: &str, request: &Request) -> Reply {
        let number = request.query["partNumber"].parse().unwrap();
        if self.bad_part == Some(number) {
            return reply(400, "<Error><Code>InvalidPart</Code></Error>");
        }
        let Some(Upload { parts, .. }) = self.uploads.get_mut(upload) else {
            return reply(404, "<Error><Code>NoSuchUpload</Code></Error>");
        };
        parts.insert(number, request.body.clone());
        let mut done = reply(200, "");
        done.headers.push(("etag", format!("\"p{number}\"")));
        done
    }

    fn content(&mut self, key: &str, request: &Request) -> Reply {
        let Some((content, version)) = self.objects.get(key) else {
            // HTTP servers return such a page for a directory.
            let below = |key: &&String| !key.is_empty() && key.starts_with(&request.path[1..]);
            let page = request.path.ends_with('/') && self.objects.keys().any(|key| below(&key));
            let mut none = reply(if page { 200 } else { 404 }, "");
            none.headers.push(("content-type", "text/html".into()));
            return none;
        };
        let etag = format!("\"e{version}\"");
        let head = request.method == "HEAD";
        if request
            .headers
            .get("if-match")
            .is_some_and(|wanted| *wanted != etag)
        {
            return reply(412, "");
        }
        let mut done = reply(200, content.clone());
        if let Some(range) = request.headers.get("range") {
            *self.reads.entry(key.to_owned()).or_default() += 1;
            let (from, to) = range
                .strip_prefix("bytes=")
                .unwrap()
                .split_once('-')
                .unwrap();
            let (from, to): (usize, usize) = (from.parse().unwrap(), to.parse().unwrap());
            let to = to.min(content.len() - 1);
            done = reply(206, content[from..=to].to_vec());
            let range = format!("bytes {from}-{to}/{}", content.len());
            done.headers.push(("content-range", range));
        }
        done.headers.push(("etag", etag));
        done.headers
            .push(("last-modified", "Thu, 01 Jan 2026 00:00:00 GMT".into()));
        if head {
            done.headers.push(("length", content.len().to_string()));
            done.body.clear();
            return done;
        }
        match self.faults.pop_front() {
            None => done,
            Some(Fault::Cut) => Reply { cut: true, ..done },
            Some(Fault::Status(status)) => reply(status, "<Error><Code>SlowDown</Code></Error>"),
        }
    }

    /// Answers a request to list uploads, with one upload per page.
    fn list_uploads(&self, request: &Request) -> Reply {
        let given = |name: &str| request.query.get(name).cloned().unwrap_or_default();
        let (prefix, after) = (given("prefix"), given("upload-id-marker"));
        let below =
            |(id, upload): &(&String, &Upload)| **id > after && upload.key.starts_with(&prefix);
        let mut left = self.uploads.iter().filter(below);
        let mut body = String::from("<ListMultipartUploadsResult>");
        if let Some((id, Upload { key, begun, .. })) = left.next() {
            write!(body, "<Upload><Key>{key}</Key><UploadId>{id}</UploadId><Initiated>{begun}</Initiated></Upload>
                <NextKeyMarker>{key}</NextKeyMarker><NextUploadIdMarker>{id}</NextUploadIdMarker>").unwrap();
        }
        let more = left.next().is_some();
        write!(
            body,
            "<IsTruncated>{more}</IsTruncated></ListMultipartUploadsResult>"
        )
        .unwrap();
        reply(200, body)
    }

    /// Answers a request to list keys, with a thousand keys per page, as S3 does.
    fn list(&mut self, request: &Request) -> Reply {
        self.lists += 1;
        let prefix = request.query.get("prefix").cloned().unwrap_or_default();
        let after = request
            .query
            .get("continuation-token")
            .cloned()
            .unwrap_or_default();
        let grouped = request.query.contains_key("delimiter");
        // A key, or the common prefix that a page shows as one entry.
        let shown = |key: &str| match key[prefix.len()..].find('/') {
            Some(at) if grouped => key[..=prefix.len() + at].to_owned(),
            _ => key.to_owned(),
        };
        let below = |key: &&String| key.starts_with(&prefix) && shown(key) > after;
        let all: BTreeMap<String, &String> = self
            .objects
            .keys()
            .filter(below)
            .map(|key| (shown(key), key))
            .collect();
        let most = request.query.get("max-keys");
        let most = most.map_or(1000, |most| most.parse::<usize>().unwrap().min(1000));
        let mut body = String::from("<ListBucketResult>");
        for (name, key) in all.iter().take(most) {
            if name != *key {
                write!(
                    body,
                    "<CommonPrefixes><Prefix>{name}</Prefix></CommonPrefixes>"
                )
                .unwrap();
                continue;
            }
            let (content, version) = &self.objects[*key];
            write!(body, "<Contents><Key>{key}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>\"e{version}\"</ETag><Size>{}</Size></Contents>", content.len()).unwrap();
        }
        if let Some((last, _)) = all.iter().nth(most).and(all.iter().nth(most - 1)) {
            write!(
                body,
                "<IsTruncated>true</IsTruncated><NextContinuationToken>{}</NextContinuationToken>",
                last
            )
            .unwrap();
        } else {
            body.push_str("<IsTruncated>false</IsTruncated>");
        }
        body.push_str("</ListBucketResult>");
        reply(200, body)
    }
}
