//! `qdiff fetch-model`: a download that was cut goes on where it ended, and only a file with the right hash is kept. The server is a
//! thread of the test, on this machine.

use qdiff::hash::sha256;
use qdiff_tests::empty;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

/// Serves `file` on a port of this machine, and cuts the first download after half of it. Gives the URL, and the positions from
/// which downloads began.
fn served(file: Vec<u8>) -> (String, Arc<Mutex<Vec<usize>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/tiny.gguf", listener.local_addr().unwrap());
    let begun = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&begun);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let lines = BufReader::new(stream.try_clone().unwrap()).lines();
            let head: Vec<String> = lines.map(Result::unwrap).take_while(|line| !line.is_empty()).collect();
            let range =
                head.iter().find_map(|line| line.strip_prefix("Range: bytes=")?.strip_suffix('-')?.parse().ok());
            let from: usize = range.unwrap_or(0);
            let status = if range.is_some() { "206 Partial Content" } else { "200 OK" };
            let (rest, all) = (file.len() - from, file.len());
            let answer = format!(
                "HTTP/1.1 {status}\r\nContent-Length: {rest}\r\nContent-Range: bytes {from}-{}/{all}\r\n\
                 Connection: close\r\n\r\n",
                all - 1
            );
            stream.write_all(answer.as_bytes()).unwrap();
            if head[0].starts_with("GET ") {
                let first = log.lock().unwrap().is_empty();
                log.lock().unwrap().push(from);
                let to = if first { all / 2 } else { all };
                // A client that has gone is no failure of the server.
                let _ = stream.write_all(&file[from..to]);
            }
        }
    });
    (url, begun)
}

#[test]
fn a_download_goes_on_and_its_hash_is_verified() {
    let folder = empty();
    folder.qdiff("synth tiny.gguf").exits(0);
    let file = std::fs::read(folder.join("tiny.gguf")).unwrap();
    let (hash, half) = (sha256(&file), file.len() / 2);
    let (url, begun) = served(file.clone());
    let cache = folder.join("cache");
    let environment = [("XDG_CACHE_HOME", cache.to_str().unwrap())];
    let fetch = |words: &str| folder.qdiff_with(&environment, &format!("fetch-model {words}"));

    let path = fetch(&format!("{url} --sha256 {hash} --path")).exits(0).stdout;
    assert!(path.ends_with("tiny.gguf\n") && !folder.join(path.trim()).exists(), "{path}");
    let cut = fetch(&format!("{url} --sha256 {hash}")).exits(2).stderr;
    assert!(cut.contains("start again to go on"), "{cut}");
    let said = fetch(&format!("{url} --sha256 {hash}")).exits(0);
    assert_eq!(said.stdout, path);
    assert_eq!(std::fs::read(path.trim()).unwrap(), file);
    assert_eq!(*begun.lock().unwrap(), [0, half]);
    // What is in the cache is not fetched again.
    fetch(&format!("{url} --sha256 {}", hash.to_uppercase())).exits(0);
    assert_eq!(begun.lock().unwrap().len(), 2);
    folder.qdiff(&format!("inspect {}", path.trim())).exits(0);

    let other = sha256(b"another file");
    let wrong = fetch(&format!("{url} --sha256 {other}")).exits(2).stderr;
    assert!(wrong.contains(&hash) && wrong.contains("was deleted"), "{wrong}");
    let left = std::fs::read_dir(cache.join("qdiff/models")).unwrap().flatten();
    let left: Vec<String> = left.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    assert!(!left.iter().any(|name| name.starts_with(&other[..8]) && !name.ends_with(".lock")), "{left:?}");

    for (words, part) in [
        (url.clone(), "a URL needs --sha256"),
        (format!("{url} --sha256 12"), "64 hexadecimal digits"),
        ("0.7b".to_owned(), "give 0.5b, 1.5b, or a URL"),
    ] {
        folder.refuses(&format!("fetch-model {words}"), &[part]);
    }
}
