//! Proxy between a store and its clients. When the proxy is shut, the server seems to disappear in the middle of any request.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

#[derive(Clone)]
pub(crate) struct Gate(Arc<Inner>);

struct Inner {
    port: u16,
    shut: AtomicBool,
    streams: Mutex<Vec<TcpStream>>,
}

impl Gate {
    pub(crate) fn before(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let gate = Self(Arc::new(Inner {
            port: listener.local_addr().unwrap().port(),
            shut: false.into(),
            streams: Mutex::default(),
        }));
        let listening = gate.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                listening.pass(stream.unwrap(), port);
            }
        });
        gate
    }

    pub(crate) fn port(&self) -> u16 {
        self.0.port
    }

    pub(crate) fn shut(&self) {
        self.0.shut.store(true, Ordering::SeqCst);
        for stream in self.0.streams.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    pub(crate) fn is_shut(&self) -> bool {
        self.0.shut.load(Ordering::SeqCst)
    }

    pub(crate) fn open(&self) {
        self.0.shut.store(false, Ordering::SeqCst);
    }

    fn pass(&self, near: TcpStream, port: u16) {
        if self.is_shut() {
            return;
        }
        let Ok(far) = TcpStream::connect(("127.0.0.1", port)) else {
            return;
        };
        let both = [&near, &far].map(|stream| stream.try_clone().unwrap());
        for stream in &both {
            stream.set_nodelay(true).unwrap();
        }
        self.0.streams.lock().unwrap().extend(both);
        let (near_too, far_too) = (near.try_clone().unwrap(), far.try_clone().unwrap());
        for (from, to) in [(near, far), (far_too, near_too)] {
            std::thread::spawn(move || transfer(from, to));
        }
    }
}

fn transfer(mut from: TcpStream, mut to: TcpStream) {
    let mut bytes = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}
