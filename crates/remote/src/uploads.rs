//! Interrupted multipart uploads in S3. S3 keeps and bills the uploads' parts until the uploads are aborted. The module lists and aborts
//! them, as OpenDAL starts uploads but can't find them again.

use crate::address::{RemoteAddress, RemoteKind, encoded, join};
use crate::object_store::{client, whole};
use crate::store::SILENCE;
use crate::{Error, Keys};
use bytes::Bytes;
use reqsign_aws_v4::{Credential, RequestSigner, StaticCredentialProvider};
use reqsign_core::time::Timestamp;
use reqsign_core::{Context, Signer};
use reqwest::{Client, Method, StatusCode};
use serde::Deserialize;
use std::sync::OnceLock;
use std::time::SystemTime;

/// Maximum number of pages in a list of uploads with the same prefix; each page has up to 1000 uploads.
const PAGES_MAX: usize = 100;
const PAGE_BYTES_MAX: u64 = 16 << 20;
/// HTTP header by which a signature does not cover the body.
const UNSIGNED: (&str, &str) = ("x-amz-content-sha256", "UNSIGNED-PAYLOAD");

/// Access to the multipart uploads of a bucket.
#[derive(Debug)]
pub(crate) struct Uploads {
    /// HTTP client, created at its first use, which is rare.
    client: OnceLock<Client>,
    /// URL of the bucket.
    url: String,
    /// Prefix of the keys of the store's files.
    root: String,
    signer: Option<Signer<Credential>>,
}

/// Incomplete upload, as S3 lists it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Upload {
    key: String,
    upload_id: String,
    initiated: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct UploadsPage {
    is_truncated: bool,
    next_key_marker: String,
    next_upload_id_marker: String,
    #[serde(rename = "Upload")]
    uploads: Vec<Upload>,
}

impl Upload {
    /// Returns whether the upload was started at or after `since`. An upload without a valid time counts as older.
    fn is_since(&self, since: SystemTime) -> bool {
        let begun = self.initiated.parse::<Timestamp>();
        begun.is_ok_and(|begun| begun.as_system_time() >= since)
    }
}

impl Uploads {
    /// Returns the access to the uploads of a store; `None` if the store is not in S3.
    pub(crate) fn open(place: &RemoteAddress, keys: &Keys) -> Option<Self> {
        let RemoteKind::S3 {
            bucket,
            root,
            endpoint,
            region,
        } = &place.kind
        else {
            return None;
        };
        let endpoint = match endpoint.as_deref().map(|given| given.trim_end_matches('/')) {
            None => format!("https://s3.{region}.amazonaws.com"),
            Some(given) if given.contains("://") => given.to_owned(),
            Some(given) => format!("https://{given}"),
        };
        let known = keys.get("access_key_id").zip(keys.get("secret_access_key"));
        let signer = known.map(|(id, secret)| {
            let provider = StaticCredentialProvider::new(id, secret);
            let provider = match keys.get("session_token") {
                Some(token) => provider.with_session_token(token),
                None => provider,
            };
            Signer::new(Context::new(), provider, RequestSigner::new("s3", region))
        });
        Some(Self {
            client: OnceLock::new(),
            url: format!("{endpoint}/{}", encoded(bucket)),
            root: root
                .split('/')
                .filter(|part| !part.is_empty())
                .collect::<Vec<_>>()
                .join("/"),
            signer,
        })
    }

    /// Aborts all uploads of a file that were started at or after `since`.
    pub(crate) async fn abandon(
        &self,
        path: &str,
        since: SystemTime,
        keys: &Keys,
    ) -> Result<(), Error> {
        let key = join(&self.root, path);
        let failed = |why: String| Error::Store {
            path: path.to_owned(),
            reason: keys.reason(&format!("unfinished uploads can't be aborted: {why}")),
        };
        for upload in self.begun(&key).await.map_err(failed)? {
            if upload.key == key && upload.is_since(since) {
                let id = encoded(&upload.upload_id);
                let target = format!("/{}?uploadId={id}", encoded(&key));
                self.ask(Method::DELETE, &target).await.map_err(failed)?;
            }
        }
        Ok(())
    }

    /// Returns all uploads whose keys begin with `prefix`.
    async fn begun(&self, prefix: &str) -> Result<Vec<Upload>, String> {
        let (mut found, mut after) = (Vec::new(), String::new());
        for _ in 0..PAGES_MAX {
            let question = format!("?uploads=&prefix={}{after}", encoded(prefix));
            let reported = self.ask(Method::GET, &question).await?;
            let text = String::from_utf8_lossy(&reported);
            let page: UploadsPage =
                quick_xml::de::from_str(&text).map_err(|error| error.to_string())?;
            found.extend(page.uploads);
            if !page.is_truncated {
                return Ok(found);
            }
            let (key, id) = (page.next_key_marker, page.next_upload_id_marker);
            after = format!(
                "&key-marker={}&upload-id-marker={}",
                encoded(&key),
                encoded(&id)
            );
        }
        Err(format!("there are more than {} of them", PAGES_MAX * 1000))
    }

    /// Sends a request and returns the answer. If an upload is missing, its abort succeeds.
    async fn ask(&self, method: Method, target: &str) -> Result<Bytes, String> {
        let is_end = method == Method::DELETE;
        let asked = http::Request::builder()
            .method(method)
            .uri(format!("{}{target}", self.url))
            .header(UNSIGNED.0, UNSIGNED.1);
        let asked = asked.body(reqwest::Body::default());
        let (mut head, body) = asked.map_err(|error| error.to_string())?.into_parts();
        if let Some(signer) = &self.signer {
            let signed = signer.sign(&mut head, None).await;
            signed.map_err(|error| error.to_string())?;
        }
        let asked = http::Request::from_parts(head, body);
        let asked = reqwest::Request::try_from(asked).map_err(|error| error.to_string())?;
        let answered = async {
            let asked = self.client.get_or_init(client).execute(asked);
            let answer = asked.await?;
            let status = answer.status();
            Ok::<_, reqwest::Error>((status, whole(answer, PAGE_BYTES_MAX).await?))
        };
        let answered = tokio::time::timeout(SILENCE, answered).await;
        let answered = answered.map_err(|_| "the store does not answer".to_owned())?;
        let (status, reported) = answered.map_err(|error| error.without_url().to_string())?;
        let reported = reported.ok_or("the answer is too long")?;
        match status.is_success() || (is_end && status == StatusCode::NOT_FOUND) {
            true => Ok(reported),
            false => Err(format!("{status} {}", String::from_utf8_lossy(&reported))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    #[tokio::test]
    async fn endless_s3_upload_listing_fails_without_buffering() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let says = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut asked = [0; 4096];
            assert!(stream.read(&mut asked).await.unwrap() > 0);
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
            let mut sent = 0;
            while stream.write_all(&[b' '; 1 << 16]).await.is_ok() {
                sent += 1_u64 << 16;
            }
            sent
        });
        let place =
            RemoteAddress::parse(&format!("s3://bucket?endpoint=http://{address}")).unwrap();
        let keys = Keys::default();
        let uploads = Uploads::open(&place, &keys).unwrap();
        let abandoned = uploads.abandon("a", SystemTime::UNIX_EPOCH, &keys);
        let error = abandoned.await.unwrap_err().to_string();
        assert!(error.contains("too long"), "{error}");
        drop(uploads);
        assert!(says.await.unwrap() < 4 * PAGE_BYTES_MAX);
    }

    #[test]
    fn s3_upload_page_parses_uploads_and_next_marker() {
        let text = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>
            <ListMultipartUploadsResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Bucket>b</Bucket><KeyMarker/>
            <NextKeyMarker>a&amp;b</NextKeyMarker><NextUploadIdMarker>2</NextUploadIdMarker><IsTruncated>true</IsTruncated>
            <Upload><Key>a</Key><UploadId>1</UploadId><Owner><ID>x</ID></Owner><Initiated>2026-11-10T20:48:33.000Z</Initiated></Upload>
            <Upload><Key>a&amp;b</Key><UploadId>2</UploadId><Initiated>?</Initiated></Upload></ListMultipartUploadsResult>";
        let page: UploadsPage = quick_xml::de::from_str(text).unwrap();
        assert!(page.is_truncated && page.next_key_marker == "a&b");
        let then = "2026-11-10T20:48:33Z".parse::<Timestamp>().unwrap();
        let [first, second] = &page.uploads[..] else {
            panic!("{page:?}");
        };
        let second_later = then.as_system_time() + std::time::Duration::from_secs(1);
        assert!(first.is_since(then.as_system_time()) && !first.is_since(second_later));
        assert!(!second.is_since(SystemTime::UNIX_EPOCH) && second.key == "a&b");
        let empty: UploadsPage = quick_xml::de::from_str("<ListMultipartUploadsResult/>").unwrap();
        assert!(!empty.is_truncated && empty.uploads.is_empty());
    }
}
