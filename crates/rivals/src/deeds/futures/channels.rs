//! The work on channels, for tasks that are futures. It follows `blocking::channels` deed by deed.

use std::array;
use std::time::{Duration, Instant};

use super::{Futures, paced};
use crate::deeds::{CHANNEL_PLACES, LAST_MESSAGE, PRODUCERS, Pace, SELECT_CHANNELS, SELECT_PLACES, SENT, sum_below};
use crate::job::{Deed, Job, Reading};

/// As `blocking::channels::Channel`.
pub(crate) trait Channel: 'static {
    type Sender: Clone + Send + Sync + 'static;
    type Receiver: Send + 'static;

    fn channel(places: usize) -> (Self::Sender, Self::Receiver);
    fn send(sender: &Self::Sender, message: u64) -> impl Future<Output = ()> + Send;
    fn receive(receiver: &mut Self::Receiver) -> impl Future<Output = Option<u64>> + Send;
}

/// As `blocking::channels::Channels`.
pub(crate) trait Channels: 'static {
    type One: Channel;
    type Many: Channel<Receiver: Clone>;

    fn select(receivers: [<Self::One as Channel>::Receiver; SELECT_CHANNELS], messages: usize) -> impl Future<Output = u64> + Send;
    fn oneshot(message: u64) -> impl Future<Output = u64> + Send {
        async move {
            let (sender, mut receiver) = Self::One::channel(1);
            Self::One::send(&sender, message).await;
            Self::One::receive(&mut receiver).await.expect(SENT)
        }
    }
}

/// Does `job` with the tasks of `T` and the channels of `C`.
pub(crate) fn perform<T: Futures, C: Channels>(job: &Job) -> Vec<Reading> {
    let job = *job;
    T::run(&job, async move {
        match job.deed {
            Deed::PingPong | Deed::PingPongApart => ping_pong::<T, C::One>(&job).await,
            Deed::TwoToOne => paced(&job, PRODUCERS, |turns| stream::<T, C::One>(turns, |receiver| vec![receiver])).await,
            Deed::TwoToTwo => {
                paced(&job, PRODUCERS, |turns| stream::<T, C::Many>(turns, |receiver| vec![receiver.clone(), receiver])).await
            }
            Deed::Select => paced(&job, SELECT_CHANNELS, select::<T, C>).await,
            Deed::Oneshot => paced(&job, 1, oneshot::<C>).await,
            other => panic!("{other:?} uses no channel"),
        }
    })
}

/// One pair for all runs: where it is does not change between them, unless the system moves it.
async fn ping_pong<T: Futures, C: Channel>(job: &Job) -> Vec<Reading> {
    let (ping, mut pings) = C::channel(1);
    let (pong, mut pongs) = C::channel(1);
    let echo = async move {
        while let Some(message) = C::receive(&mut pings).await {
            C::send(&pong, message).await;
        }
    };
    // Held until the end: some end a task whose handle is dropped.
    let _handle = match job.deed {
        Deed::PingPongApart => {
            T::spawn_apart(echo);
            None
        }
        _ => Some(T::spawn(echo)),
    };
    let mut pace = Pace::of(job);
    let took = loop {
        let start = Instant::now();
        for turn in 0..pace.turns as u64 {
            C::send(&ping, turn).await;
            assert_eq!(C::receive(&mut pongs).await, Some(turn), "the echo is wrong");
        }
        let took = start.elapsed();
        if pace.enough(took) {
            break took;
        }
    };
    drop(ping);
    assert_eq!(C::receive(&mut pongs).await, None, "the echo has ended");
    pace.reading(took, 1)
}

/// `share` says how many consumers there are.
async fn stream<T: Futures, C: Channel>(turns: usize, share: fn(C::Receiver) -> Vec<C::Receiver>) -> Duration {
    let (sender, receiver) = C::channel(CHANNEL_PLACES);
    let receivers = share(receiver);
    let start = Instant::now();
    let consume = |mut receiver| {
        T::spawn(async move {
            let mut sum = 0;
            while let Some(message) = C::receive(&mut receiver).await.filter(|&message| message != LAST_MESSAGE) {
                sum += message;
            }
            sum
        })
    };
    let consumers: Vec<_> = receivers.into_iter().map(consume).collect();
    let producers: [_; PRODUCERS] = array::from_fn(|_| produce::<T, C>(sender.clone(), turns));
    for producer in producers {
        T::join(producer).await;
    }
    for _ in 0..consumers.len() {
        C::send(&sender, LAST_MESSAGE).await;
    }
    let mut sum = 0;
    for consumer in consumers {
        sum += T::join(consumer).await;
    }
    let took = start.elapsed();
    assert_eq!(sum, PRODUCERS as u64 * sum_below(turns), "the messages were not all received once");
    took
}

fn produce<T: Futures, C: Channel>(sender: C::Sender, turns: usize) -> T::Handle<()> {
    T::spawn(async move {
        for turn in 0..turns as u64 {
            C::send(&sender, turn).await;
        }
    })
}

async fn select<T: Futures, C: Channels>(turns: usize) -> Duration {
    let channels: [_; SELECT_CHANNELS] = array::from_fn(|_| C::One::channel(SELECT_PLACES));
    // They stay until the end: a channel without senders would always be ready.
    let senders = channels.each_ref().map(|(sender, _)| sender.clone());
    let receivers = channels.map(|(_, receiver)| receiver);
    let start = Instant::now();
    let producers = senders.each_ref().map(|sender| produce::<T, C::One>(sender.clone(), turns));
    let sum = C::select(receivers, SELECT_CHANNELS * turns).await;
    for producer in producers {
        T::join(producer).await;
    }
    let took = start.elapsed();
    drop(senders);
    assert_eq!(sum, SELECT_CHANNELS as u64 * sum_below(turns), "the messages were not all received once");
    took
}

async fn oneshot<C: Channels>(turns: usize) -> Duration {
    let start = Instant::now();
    for turn in 0..turns as u64 {
        assert_eq!(C::oneshot(turn).await, turn, "another message came");
    }
    start.elapsed()
}
