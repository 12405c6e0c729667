//! Tests of listener and connector over real sockets, with CAs that are created for the test.

use super::*;
use crate::error::{Error, deepest};
use crate::objects::{ObjectAddress, Objects};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, date_time_ymd};
use rustix::process::{Resource, getrlimit, setrlimit};
use tidemill_model::id::ObjectId;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

struct Ca {
    issuer: Issuer<'static, KeyPair>,
    trust: Trust,
}

impl Ca {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        let certificate = params.self_signed(&key).unwrap();
        Self {
            trust: Trust::new(certificate.der()).unwrap(),
            issuer: Issuer::new(params, key),
        }
    }

    /// Returns an identity whose certificate is valid in the given years.
    fn identity(&self, name: &str, years: std::ops::Range<i32>) -> ServerIdentity {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.not_before = date_time_ymd(years.start, 1, 1);
        params.not_after = date_time_ymd(years.end, 1, 1);
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        identity(
            certificate.der(),
            &key.serialize_der(),
            InnerProtocol::Http1,
        )
        .unwrap()
    }
}

const NOW: std::ops::Range<i32> = 2020..2999;

/// Starts a listener that answers one request of each connection with `answer`. Returns its address.
async fn serve(mut listener: Listener) -> String {
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await;
            tokio::spawn(async move {
                let mut request = [0; 4096];
                let _ = stream.read(&mut request).await;
                let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nanswer";
                let _ = stream.write_all(answer).await;
                let _ = stream.shutdown().await;
            });
        }
    });
    address
}

async fn serve_tls(identity: ServerIdentity) -> String {
    let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
    serve(Listener::new(
        tcp,
        Some(watch::channel(Some(identity)).1),
        8,
    ))
    .await
}

/// Reads an object from a peer that claims to be node 3.
async fn read(trust: Option<&Trust>, url: String) -> Result<bytes::Bytes, Error> {
    let remote = ObjectAddress {
        node: NodeId(3),
        url: url.into(),
        object: ObjectId(1),
        capability: vec![1],
    };
    Objects::new(trust).read(&remote, 0, 6).await
}

async fn refusal(trust: Option<&Trust>, url: String) -> String {
    match read(trust, url).await {
        Err(error @ Error::Node { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn tls_peer_is_verified_by_ca_and_name() {
    let ca = Ca::new();
    let address = serve_tls(ca.identity("node-3.tidemill", NOW)).await;
    let url = format!("https://{address}");
    let answer = read(Some(&ca.trust), url.clone()).await.unwrap();
    assert_eq!(answer, "answer");

    let foreign = refusal(Some(&Ca::new().trust), url.clone()).await;
    assert!(
        foreign.contains("not signed by this cluster's CA"),
        "{foreign}"
    );
    assert!(foreign.contains(&url), "{foreign}");
    let untrusted = refusal(None, url).await;
    assert!(
        untrusted.contains("no certificate of the cluster's CA"),
        "{untrusted}"
    );

    for name in ["node-4.tidemill", "server.tidemill"] {
        let address = serve_tls(ca.identity(name, NOW)).await;
        let other = refusal(Some(&ca.trust), format!("https://{address}")).await;
        assert!(other.contains("than `node-3.tidemill`"), "{other}");
    }
}

#[tokio::test]
async fn certificate_outside_its_validity_is_refused() {
    let ca = Ca::new();
    for (years, reported) in [(2000..2001, "has expired"), (2998..2999, "not valid yet")] {
        let address = serve_tls(ca.identity("node-3.tidemill", years)).await;
        let error = refusal(Some(&ca.trust), format!("https://{address}")).await;
        assert!(error.contains(reported), "{error}");
    }
}

#[tokio::test]
async fn tls_mismatch_is_reported_when_one_side_is_plain() {
    let ca = Ca::new();
    let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let plain = serve(Listener::new(tcp, None, 8)).await;
    let error = refusal(Some(&ca.trust), format!("https://{plain}")).await;
    assert!(error.contains("without TLS"), "{error}");
    let answer = read(None, format!("http://{plain}")).await.unwrap();
    assert_eq!(answer, "answer");

    let address = serve_tls(ca.identity("node-3.tidemill", NOW)).await;
    read(None, format!("http://{address}")).await.unwrap_err();
    let mut raw = TcpStream::connect(&address).await.unwrap();
    raw.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        .await
        .unwrap();
    let mut reported = Vec::new();
    raw.read_to_end(&mut reported).await.unwrap();
    // A TLS record of the kind `alert`, and nothing else.
    assert_eq!(
        (reported.first(), reported.len()),
        (Some(&21), 7),
        "{reported:?}"
    );
}

#[tokio::test]
async fn listener_serves_others_and_new_identity_with_silent_peer() {
    let ca = Ca::new();
    let (identity, current) = watch::channel(None);
    let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = serve(Listener::new(tcp, Some(current), 8)).await;
    let url = format!("https://{address}");
    let _silent = TcpStream::connect(&address).await.unwrap();
    // Connects before there is a certificate, and waits for it.
    let waiting = tokio::spawn({
        let (trust, url) = (ca.trust.clone(), url.clone());
        async move { read(Some(&trust), url).await }
    });
    tokio::task::yield_now().await;
    identity.send_replace(Some(ca.identity("node-3.tidemill", NOW)));
    waiting.await.unwrap().unwrap();
    let next = Ca::new();
    identity.send_replace(Some(next.identity("node-3.tidemill", NOW)));
    read(Some(&next.trust), url.clone()).await.unwrap();
    refusal(Some(&ca.trust), url).await;
}

#[tokio::test]
async fn listener_serves_next_peer_despite_thousand_silent_peers() {
    let ca = Ca::new();
    let address = serve_tls(ca.identity("node-3.tidemill", NOW)).await;
    // This process has both ends, and an ordinary user may have a thousand open files by default.
    let mut files = getrlimit(Resource::Nofile);
    files.current = files.maximum;
    setrlimit(Resource::Nofile, files).unwrap();
    let mut silent = Vec::new();
    for _ in 0..1000 {
        silent.push(TcpStream::connect(&address).await.unwrap());
    }
    read(Some(&ca.trust), format!("https://{address}"))
        .await
        .unwrap();
    // The first one was closed for the others.
    let mut first = silent.swap_remove(0);
    let mut reported = [0];
    assert!(!matches!(first.read(&mut reported).await, Ok(1..)));
}

#[test]
fn tls_problem_is_found_in_nested_errors() {
    let unknown = rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer);
    let error = std::io::Error::other(std::io::Error::other(unknown));
    assert_eq!(TlsProblem::of(&error), Some(TlsProblem::OtherCa));
    let error = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
    assert_eq!(TlsProblem::of(&error), None);
    assert!(!deepest(&error).is_empty());
}
