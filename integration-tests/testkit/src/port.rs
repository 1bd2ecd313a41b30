//! Finds free ports on loopback.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::net::TcpListener;

/// Below Linux' range for outgoing connections (32768 and up), so that no client socket takes a port
/// between our look and the daemon's bind.
const FIRST: u16 = 20_000;
const LAST: u16 = 32_000;

/// `N` different ports that nobody listens on, chosen at random so that several processes rarely choose
/// the same. They can still be taken before the daemon binds; the caller tries again then.
pub(crate) fn free<const N: usize>() -> io::Result<[u16; N]> {
    let mut held = Vec::with_capacity(N);
    let mut ports = [0; N];
    let span = u64::from(LAST - FIRST);
    for port in &mut ports {
        let listener = (0..256)
            .find_map(|_| {
                let candidate = FIRST + u16::try_from(random() % span).expect("the span fits in 16 bits");
                TcpListener::bind(("127.0.0.1", candidate)).ok()
            })
            .ok_or_else(|| io::Error::new(io::ErrorKind::AddrInUse, "no free port between 20000 and 32000"))?;
        *port = listener.local_addr()?.port();
        held.push(listener);
    }
    Ok(ports)
}

/// A random number from the standard library's hash map seed.
pub(crate) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::thread;
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn ports_differ_and_can_be_bound() {
        let ports = free::<8>().unwrap();
        // Until a process that another thread starts has executed its program, it holds the open files of this one.
        let began = Instant::now();
        let bind = |port: &u16| loop {
            match TcpListener::bind(("127.0.0.1", *port)) {
                Ok(listener) => break listener,
                Err(error) => assert!(began.elapsed() < Duration::from_secs(5), "port {port}: {error}"),
            }
            thread::sleep(Duration::from_millis(10));
        };
        let bound: Vec<_> = ports.iter().map(bind).collect();
        assert_eq!(bound.len(), 8);
        assert!(ports.iter().all(|port| (FIRST..LAST).contains(port)));
    }

    #[test]
    fn random_numbers_differ() {
        assert_ne!(random(), random());
    }
}
