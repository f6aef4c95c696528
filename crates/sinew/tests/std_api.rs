//! The same program with std's types and with ours: it is enough that both compile. Nothing of it runs.
//!
//! Not here: what std has deprecated (`fs::soft_link`, `TcpListener::only_v6`, `CommandExt::before_exec`), `IsTerminal`, which no other crate can give its types, and `Read`, `Write` and `Seek` for `Arc<File>`, which no other crate can
//! give an `Arc` (`&*file` has them).

#![allow(unused, clippy::all, reason = "nothing is done with what the calls give")]

macro_rules! net {
    ($m:ident, $net:path, $unix:path) => {
        mod $m {
            use net::{TcpListener, TcpStream, UdpSocket};
            use std::io::{self, IoSlice, IoSliceMut, Read, Write};
            use std::net::*;
            use std::os::fd::*;
            use std::panic::{RefUnwindSafe, UnwindSafe};
            use std::time::Duration;
            use $net as net;
            use $unix as unix;

            fn socket<T: AsFd + AsRawFd + IntoRawFd + FromRawFd + From<OwnedFd> + Into<OwnedFd>>() {}
            fn value<T: std::fmt::Debug + Send + Sync + UnwindSafe + RefUnwindSafe + Unpin>() {}
            fn stream<T: Read + Write>() {}
            fn all() -> io::Result<()> {
                socket::<TcpStream>();
                value::<TcpStream>();
                socket::<TcpListener>();
                value::<TcpListener>();
                socket::<UdpSocket>();
                value::<UdpSocket>();
                socket::<unix::UnixStream>();
                value::<unix::UnixStream>();
                socket::<unix::UnixListener>();
                value::<unix::UnixListener>();
                socket::<unix::UnixDatagram>();
                value::<unix::UnixDatagram>();
                stream::<TcpStream>();
                stream::<unix::UnixStream>();
                stream::<&TcpStream>();
                stream::<&unix::UnixStream>();
                TcpStream::connect::<&str>("a:1")?;
                TcpListener::bind::<&str>("a:1")?;
                UdpSocket::bind::<&str>("a:1")?.send_to::<&str>(&[0], "a:1")?;
                unix::UnixStream::connect::<&str>("a")?;
                unix::UnixListener::bind::<&str>("a")?;
                unix::UnixDatagram::bind::<&str>("a")?.send_to::<&str>(&[0], "a")?;
                let s = TcpStream::connect("a:1")?;
                let s = TcpStream::connect(("a".to_string(), 1))?;
                let s = TcpStream::connect(&[SocketAddr::from(([1, 2, 3, 4], 5))][..])?;
                let s = TcpStream::connect_timeout(&SocketAddr::from(([1, 2, 3, 4], 5)), Duration::MAX)?;
                s.peer_addr()?;
                s.local_addr()?;
                s.shutdown(Shutdown::Both)?;
                s.try_clone()?;
                s.set_read_timeout(None)?;
                s.set_write_timeout(None)?;
                s.read_timeout()?;
                s.write_timeout()?;
                s.peek(&mut [0])?;
                s.set_nodelay(true)?;
                s.nodelay()?;
                s.set_ttl(1)?;
                s.ttl()?;
                s.take_error()?;
                s.set_nonblocking(true)?;
                let l = TcpListener::bind("a:1")?;
                l.local_addr()?;
                l.try_clone()?;
                l.accept()?;
                l.incoming().next();
                l.set_ttl(1)?;
                l.ttl()?;
                l.take_error()?;
                l.set_nonblocking(true)?;
                let x: Option<net::Incoming> = None;
                let u = UdpSocket::bind("a:1")?;
                u.recv_from(&mut [0])?;
                u.peek_from(&mut [0])?;
                u.send_to(&[0], "a:1")?;
                u.peer_addr()?;
                u.local_addr()?;
                u.try_clone()?;
                u.set_broadcast(true)?;
                u.broadcast()?;
                u.set_multicast_loop_v4(true)?;
                u.multicast_loop_v4()?;
                u.set_multicast_ttl_v4(1)?;
                u.multicast_ttl_v4()?;
                u.set_multicast_loop_v6(true)?;
                u.multicast_loop_v6()?;
                u.set_ttl(1)?;
                u.ttl()?;
                u.join_multicast_v4(&Ipv4Addr::LOCALHOST, &Ipv4Addr::LOCALHOST)?;
                u.join_multicast_v6(&Ipv6Addr::LOCALHOST, 0)?;
                u.leave_multicast_v4(&Ipv4Addr::LOCALHOST, &Ipv4Addr::LOCALHOST)?;
                u.leave_multicast_v6(&Ipv6Addr::LOCALHOST, 0)?;
                u.take_error()?;
                u.connect("a:1")?;
                u.send(&[0])?;
                u.recv(&mut [0])?;
                u.peek(&mut [0])?;
                u.set_nonblocking(true)?;
                u.set_read_timeout(None)?;
                u.write_timeout()?;
                let s = unix::UnixStream::connect("a")?;
                let s = unix::UnixStream::connect_addr(&s.peer_addr()?)?;
                let (a, b) = unix::UnixStream::pair()?;
                s.try_clone()?;
                s.local_addr()?;
                s.set_read_timeout(None)?;
                s.take_error()?;
                s.shutdown(Shutdown::Read)?;
                s.set_nonblocking(true)?;
                let l = unix::UnixListener::bind("a")?;
                let l = unix::UnixListener::bind_addr(&s.peer_addr()?)?;
                l.accept()?;
                l.incoming();
                for c in &l {}
                l.local_addr()?;
                l.take_error()?;
                l.set_nonblocking(true)?;
                l.try_clone()?;
                let x: Option<unix::Incoming> = None;
                let x: Option<unix::SocketAddr> = None;
                let d = unix::UnixDatagram::bind("a")?;
                let d = unix::UnixDatagram::bind_addr(&s.peer_addr()?)?;
                unix::UnixDatagram::unbound()?;
                unix::UnixDatagram::pair()?;
                d.connect("a")?;
                d.connect_addr(&s.peer_addr()?)?;
                d.try_clone()?;
                d.local_addr()?;
                d.peer_addr()?;
                d.recv_from(&mut [0])?;
                d.recv(&mut [0])?;
                d.send_to(&[0], "a")?;
                d.send_to_addr(&[0], &s.peer_addr()?)?;
                d.send(&[0])?;
                d.set_read_timeout(None)?;
                d.set_write_timeout(None)?;
                d.read_timeout()?;
                d.write_timeout()?;
                d.set_nonblocking(true)?;
                d.take_error()?;
                d.shutdown(Shutdown::Both)?;
                let (x1, x2, x3): (net::IpAddr, net::Shutdown, net::SocketAddrV4);
                Ok(())
            }
        }
    };
}
net!(with_std, std::net, std::os::unix::net);
net!(with_sinew, sinew::net, sinew::net::unix);

macro_rules! rest {
    ($m:ident, $fs:path, $process:path, $io:path) => {
        mod $m {
            use io::{BufRead, Read, Seek, Write};
            use std::os::unix::fs::{DirBuilderExt, DirEntryExt, FileExt, OpenOptionsExt};
            use $fs as fs;
            use $io as io;
            use $process as process;

            fn value<T: Send + Sync + std::fmt::Debug + Unpin + std::panic::UnwindSafe + std::panic::RefUnwindSafe>() {}
            fn all() -> io::Result<()> {
                value::<fs::File>();
                value::<fs::OpenOptions>();
                value::<fs::DirBuilder>();
                value::<fs::DirEntry>();
                value::<fs::ReadDir>();
                value::<process::Child>();
                value::<process::ChildStdin>();
                value::<process::ChildStdout>();
                value::<io::Stdin>();
                value::<io::Stdout>();
                value::<io::PipeReader>();
                value::<io::PipeWriter>();
                let f = fs::File::open("a")?;
                let f = fs::File::create("a")?;
                let f = fs::File::create_new("a")?;
                let f = fs::File::options().read(true).open("a")?;
                f.sync_all()?;
                f.sync_data()?;
                f.set_len(1)?;
                f.metadata()?;
                f.try_clone()?;
                f.set_permissions(f.metadata()?.permissions())?;
                f.set_times(fs::FileTimes::new())?;
                f.set_modified(std::time::SystemTime::now())?;
                f.lock()?;
                f.lock_shared()?;
                let _: Result<(), fs::TryLockError> = f.try_lock();
                let _ = f.try_lock_shared();
                f.unlock()?;
                f.read_at(&mut [0], 0)?;
                f.read_exact_at(&mut [0], 0)?;
                f.write_at(&[0], 0)?;
                f.write_all_at(&[0], 0)?;
                (&f).read(&mut [0])?;
                (&f).write(&[0])?;
                (&f).seek(io::SeekFrom::Start(0))?;
                (&f).stream_position()?;
                (&f).rewind()?;
                (&f).seek_relative(1)?;
                let _ = fs::OpenOptions::new()
                    .read(true)
                    .write(true)
                    .append(true)
                    .truncate(true)
                    .create(true)
                    .create_new(true)
                    .mode(0)
                    .custom_flags(0)
                    .clone();
                fs::canonicalize("a")?;
                fs::copy("a", "b")?;
                fs::create_dir("a")?;
                fs::create_dir_all("a")?;
                fs::exists("a")?;
                fs::hard_link("a", "b")?;
                fs::metadata("a")?;
                fs::read("a")?;
                fs::read_dir("a")?;
                fs::read_link("a")?;
                fs::read_to_string("a")?;
                fs::remove_dir("a")?;
                fs::remove_dir_all("a")?;
                fs::remove_file("a")?;
                fs::rename("a", "b")?;
                fs::set_permissions("a", fs::metadata("a")?.permissions())?;
                fs::symlink_metadata("a")?;
                fs::write("a", "b")?;
                fs::DirBuilder::new().recursive(true).mode(0).create("a")?;
                for e in fs::read_dir("a")? {
                    let e = e?;
                    e.path();
                    e.metadata()?;
                    e.file_type()?;
                    e.file_name();
                    e.ino();
                }
                let mut c = process::Command::new("a");
                c.arg("b")
                    .args(["c"])
                    .env("a", "b")
                    .envs([("a", "b")])
                    .env_remove("a")
                    .env_clear()
                    .current_dir("/")
                    .stdin(process::Stdio::null())
                    .stdout(process::Stdio::piped())
                    .stderr(process::Stdio::inherit());
                c.get_program();
                c.get_args();
                c.get_envs();
                c.get_current_dir();
                let mut ch: process::Child = c.spawn()?;
                c.output()?;
                c.status()?;
                ch.kill()?;
                ch.id();
                ch.wait()?;
                ch.try_wait()?;
                let o: process::Output = ch.wait_with_output()?;
                let out = ch_out(&mut c)?;
                c.stdin(out);
                let mut s = String::new();
                io::stdin().read_line(&mut s)?;
                io::stdin().lines().next();
                io::stdin().lock().read_line(&mut s)?;
                io::stdin().lock().lines().next();
                io::stdout().lock().write(b"a")?;
                io::stderr().lock().write(b"a")?;
                io::stdout().flush()?;
                io::copy(&mut io::empty(), &mut io::sink())?;
                let (r, w) = io::pipe()?;
                r.try_clone()?;
                w.try_clone()?;
                io::read_to_string(r)?;
                (&io::stdin()).read(&mut [0])?;
                (&io::stdout()).write(&[0])?;
                Ok(())
            }
            fn ch_out(c: &mut process::Command) -> io::Result<process::ChildStdout> {
                Ok(c.spawn()?.stdout.unwrap())
            }
        }
    };
}
rest!(rest_std, std::fs, std::process, std::io);
rest!(rest_sinew, sinew::fs, sinew::process, sinew::io);

macro_rules! threads {
    ($m:ident, $($thread:tt)*) => {
        mod $m {
            use std::time::Duration;
            $($thread)*;

            fn all() -> std::thread::Result<()> {
                let handle: thread::JoinHandle<u8> = thread::spawn(|| 7);
                handle.is_finished();
                handle.join()?;
                let named = thread::Builder::new().name(String::from("named")).stack_size(1 << 16).spawn(|| ()).unwrap();
                thread::scope(|s| {
                    s.spawn(|| s.spawn(|| ())).join()?;
                    thread::Builder::new().spawn_scoped(s, || ()).unwrap().join()
                })?;
                let me = thread::current();
                (me.id(), me.name());
                me.unpark();
                thread::park();
                thread::park_timeout(Duration::ZERO);
                thread::sleep(Duration::ZERO);
                thread::yield_now();
                let parallel: std::io::Result<std::num::NonZeroUsize> = thread::available_parallelism();
                let unwinds: bool = thread::panicking();
                named.join()
            }
        }
    };
}
threads!(threads_std, use std::thread);
threads!(threads_sinew, use sinew as thread);
