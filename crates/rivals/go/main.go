// The work of `rivals` on goroutines. It takes the arguments of `src/job.rs`, follows `src/deeds/blocking.rs` and its folder deed by deed, and prints the same
// lines.
//
// A join is a channel that the goroutine closes, or a WaitGroup where many are joined: what a Go program would write.
package main

import (
	"bufio"
	"encoding/binary"
	"flag"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"runtime"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

const (
	skynetChildren  = 10
	wakeGap         = time.Millisecond
	idleTimer       = 100 * time.Second
	settle          = 300 * time.Millisecond
	look            = 5 * time.Millisecond
	parkedWarmUp    = 16
	turnsPerWrite   = 10
	producers       = 2
	channelPlaces   = 1024
	selectChannels  = 8
	selectPlaces    = 1
	shortSteps      = 50
	unbalancedSteps = 20_000_000
	longTries       = 100
	stormNap        = time.Millisecond
	bufferBytes     = 1024
	hog             = 'h'
	hogSpan         = 10 * time.Millisecond
	hello           = "Hello, world!"
	blockBytes      = 4096
	blocks          = 16 << 10
)

var tasks, turns, budgetMs, workers int

func main() {
	deed := os.Args[1]
	flags := flag.NewFlagSet("job", flag.ExitOnError)
	flags.IntVar(&workers, "workers", 1, "")
	flags.IntVar(&tasks, "tasks", 1, "")
	flags.IntVar(&turns, "turns", 1, "")
	flags.IntVar(&budgetMs, "budget-ms", 0, "")
	flags.Int("stack-kib", 0, "")
	flags.Parse(os.Args[2:])
	runtime.GOMAXPROCS(workers)

	deeds := map[string]func(){
		"yield":        func() { paced(tasks, yields) },
		"spawn-join":   func() { paced(1, spawnJoin) },
		"spawn-all":    func() { paced(tasks, spawnAll) },
		"fan-out":      func() { paced(tasks, fanOut) },
		"unbalanced":   unbalanced,
		"skynet":       skynet,
		"wake":         wake,
		"timers":       func() { timers(""); timers("warm-") },
		"parked":       parked,
		"idle":         idle,
		"storm":        storm,
		"mutex":        func() { paced(tasks, mutex) },
		"mutex-wait":   mutexWait,
		"rw-lock":      func() { paced(tasks, rwLock) },
		"rw-lock-wait": rwLockWait,
		"ping-pong":    func() { pingPong(func() {}) },
		// Two goroutines that keep their threads are on two.
		"ping-pong-apart": func() { pingPong(runtime.LockOSThread) },
		"two-to-one":      func() { paced(producers, func(turns int) time.Duration { return stream(turns, 1) }) },
		"two-to-two":      func() { paced(producers, func(turns int) time.Duration { return stream(turns, 2) }) },
		"select":          func() { paced(selectChannels, selects) },
		"oneshot":         func() { paced(1, oneshot) },
		"echo":            func() { serve(func([]byte) {}) },
		"echo-shared":     func() { serve(func([]byte) {}) },
		"hog":             func() { serve(burnIfHog()) },
		"hog-paced":       func() { serve(burnIfHog()) },
		"http":            serveHTTP,
		"http-shared":     serveHTTP,
		"file-read":       fileRead,
	}
	do, known := deeds[deed]
	if !known {
		fmt.Fprintln(os.Stderr, "goroutines cannot do", deed)
		os.Exit(1)
	}
	do()
}

func say(metric, unit string, value float64) { fmt.Println(metric, unit, value) }

// paced runs ever more turns until the budget is used, and reports the last run.
func paced(operationsPerTurn int, run func(turns int) time.Duration) {
	took := untilEnough(run)
	say("-", "ns", float64(took.Nanoseconds())/float64(turns)/float64(operationsPerTurn))
	if budgetMs == 0 {
		sayPeak()
	}
}

// untilEnough leaves the turns of the last run in turns.
func untilEnough(run func(turns int) time.Duration) time.Duration {
	budget := time.Duration(budgetMs) * time.Millisecond
	wanted := 4 * budget // the first run is cold, and counts only if it is long
	for {
		took := run(turns)
		if took >= wanted {
			return took
		}
		missing := float64(budget) / float64(took+1) * 1.2
		if missing > 100 {
			missing = 100
		}
		if missing > 1 {
			turns = int(float64(turns)*missing) + 1
		}
		wanted = budget
	}
}

func yields(turns int) time.Duration {
	return together(func(int) {
		for i := 0; i < turns; i++ {
			runtime.Gosched()
		}
	})
}

// together runs work in all goroutines, which have started before the clock does.
func together(work func(index int)) time.Duration {
	var started int32
	var all sync.WaitGroup
	open := make(chan struct{})
	all.Add(tasks)
	for i := 0; i < tasks; i++ {
		go func(i int) {
			atomic.AddInt32(&started, 1)
			<-open
			work(i)
			all.Done()
		}(i)
	}
	for int(atomic.LoadInt32(&started)) < tasks {
		time.Sleep(look)
	}
	close(open)
	start := time.Now()
	all.Wait()
	return time.Since(start)
}

func spawnJoin(turns int) time.Duration {
	start := time.Now()
	for i := 0; i < turns; i++ {
		done := make(chan struct{})
		go func() { close(done) }()
		<-done
	}
	return time.Since(start)
}

func spawnAll(turns int) time.Duration {
	start := time.Now()
	for i := 0; i < turns; i++ {
		var all sync.WaitGroup
		all.Add(tasks)
		for i := 0; i < tasks; i++ {
			go all.Done()
		}
		all.Wait()
	}
	return time.Since(start)
}

func fanOut(turns int) time.Duration { return spawnComputing(turns, shortSteps) }

// unbalanced says how long a turn takes, and how many times as long that is as it would be if all workers, or all CPUs if these are fewer, always computed.
func unbalanced() {
	took := untilEnough(func(turns int) time.Duration { return spawnComputing(turns, unbalancedSteps/tasks) })
	turn := took.Seconds() / float64(turns)
	least := time.Hour
	for i := 0; i < longTries; i++ {
		start := time.Now()
		stepOn(unbalancedSteps / tasks)
		if took := time.Since(start); took < least {
			least = took
		}
	}
	atOnce := workers
	if cpus := runtime.NumCPU(); cpus < atOnce {
		atOnce = cpus
	}
	say("-", "ms", turn*1e3)
	say("ratio", "x", turn/(least.Seconds()*float64(tasks)/float64(atOnce)))
}

func spawnComputing(turns, steps int) time.Duration {
	start := time.Now()
	for i := 0; i < turns; i++ {
		var all sync.WaitGroup
		all.Add(tasks)
		for i := 0; i < tasks; i++ {
			go func() {
				stepOn(steps)
				all.Done()
			}()
		}
		all.Wait()
	}
	return time.Since(start)
}

// stepOn computes as `compute` of `src/deeds/mod.rs` does.
//
//go:noinline
func stepOn(steps int) uint64 {
	value := uint64(steps)
	for i := 0; i < steps; i++ {
		value ^= value << 13
		value ^= value >> 7
		value ^= value << 17
	}
	return value
}

func skynet() {
	var node func(parent chan<- uint64, first, leaves int)
	node = func(parent chan<- uint64, first, leaves int) {
		if leaves == 1 {
			parent <- uint64(first)
			return
		}
		children := make(chan uint64, skynetChildren)
		share := leaves / skynetChildren
		for i := 0; i < skynetChildren; i++ {
			go node(children, first+i*share, share)
		}
		var sum uint64
		for i := 0; i < skynetChildren; i++ {
			sum += <-children
		}
		parent <- sum
	}
	start := time.Now()
	result := make(chan uint64, 1)
	go node(result, 0, tasks)
	sum := <-result
	took := time.Since(start)
	check(sum, sumBelow(tasks))
	say("-", "ms", took.Seconds()*1e3)
	sayPeak()
}

// park starts goroutines that wait for ever, and comes back when all do.
func park(count int) {
	var started int32
	for i := 0; i < count; i++ {
		go func() {
			bell := make(chan struct{})
			atomic.AddInt32(&started, 1)
			<-bell
		}()
	}
	for int(atomic.LoadInt32(&started)) < count {
		time.Sleep(look)
	}
}

func wake() {
	park(tasks)
	sayLatencies("", hear(), "p50", "p99", "p999")
}

// hear: Go has no outside threads without cgo, so the waker is a goroutine that keeps its thread and sleeps in the kernel.
func hear() []int64 {
	base := time.Now()
	var rungNs, heard int64
	bell := make(chan struct{}, 1)
	nap := func() {
		span := syscall.NsecToTimespec(wakeGap.Nanoseconds())
		syscall.Nanosleep(&span, nil)
	}
	go func() {
		runtime.LockOSThread()
		for rung := 0; rung < turns; rung++ {
			nap()
			for int(atomic.LoadInt64(&heard)) < rung {
				nap()
			}
			atomic.StoreInt64(&rungNs, int64(time.Since(base)))
			bell <- struct{}{}
		}
	}()
	late := make([]int64, turns)
	for i := range late {
		<-bell
		late[i] = int64(time.Since(base)) - atomic.LoadInt64(&rungNs)
		atomic.AddInt64(&heard, 1)
	}
	return late
}

func storm() {
	sleepers := tasks
	yielders := 2 * workers
	tasks = yielders + sleepers + 1
	var done int32
	var heard []int64
	late := make([]int64, sleepers*turns)
	together(func(index int) {
		switch {
		case index < yielders:
			for int(atomic.LoadInt32(&done)) <= sleepers {
				runtime.Gosched()
			}
			return
		case index < yielders+sleepers:
			own := late[(index-yielders)*turns:][:turns]
			for i := range own {
				deadline := time.Now().Add(stormNap)
				time.Sleep(stormNap)
				if over := time.Since(deadline); over > 0 {
					own[i] = int64(over)
				}
			}
		default:
			heard = hear()
		}
		atomic.AddInt32(&done, 1)
	})
	sayLatencies("", late, "p50", "p99", "p999")
	sayLatencies("wake-", heard, "p50", "p99", "p999")
}

func timers(wave string) {
	late := make([]int64, tasks)
	var all sync.WaitGroup
	all.Add(tasks)
	cpu := cpuTime()
	for i := 0; i < tasks; i++ {
		go func(i int) {
			hash := uint64(i) * 2654435761 & 0xffffffff
			span := time.Duration(1000+hash*uint64(turns-1)*1000/0xffffffff) * time.Microsecond
			deadline := time.Now().Add(span)
			time.Sleep(span)
			if over := time.Since(deadline); over > 0 {
				late[i] = int64(over)
			}
			all.Done()
		}(i)
	}
	all.Wait()
	say(wave+"cpu", "ms", (cpuTime()-cpu).Seconds()*1e3)
	sayLatencies(wave, late, "p50", "p99")
}

func parked() {
	park(parkedWarmUp)
	before := statusBytes("VmRSS") + statusBytes("VmPTE")
	park(tasks)
	time.Sleep(settle)
	after := statusBytes("VmRSS") + statusBytes("VmPTE")
	say("-", "B", float64(after-before)/float64(tasks))
	maps, _ := os.ReadFile("/proc/self/maps")
	say("vmas", "vmas", float64(strings.Count(string(maps), "\n")))
}

func idle() {
	park(tasks)
	go time.Sleep(idleTimer)
	span := time.Duration(turns) * time.Millisecond
	time.Sleep(settle)
	cpu := cpuTime()
	time.Sleep(span)
	say("-", "%", (cpuTime()-cpu).Seconds()/span.Seconds()*100)
}

func mutex(turns int) time.Duration {
	var lock sync.Mutex
	var sum uint64
	took := together(func(int) {
		for i := 0; i < turns; i++ {
			lock.Lock()
			sum++
			lock.Unlock()
		}
	})
	check(sum, uint64(tasks*turns))
	return took
}

func mutexWait() {
	var longest []time.Duration
	var overtaken []uint64
	took := untilEnough(func(turns int) time.Duration {
		var lock sync.Mutex
		var sum uint64
		longest = make([]time.Duration, tasks)
		overtaken = make([]uint64, tasks)
		took := together(func(index int) {
			var own time.Duration
			var most, last uint64
			for i := 0; i < turns; i++ {
				start := time.Now()
				lock.Lock()
				sum++
				turn := sum
				lock.Unlock()
				if took := time.Since(start); took > own {
					own = took
				}
				if last != 0 && turn-last-1 > most {
					most = turn - last - 1
				}
				last = turn
			}
			longest[index], overtaken[index] = own, most
		})
		check(sum, uint64(tasks*turns))
		return took
	})
	sayLongest(longest)
	turnUs := float64(took.Nanoseconds()) / float64(turns) / float64(tasks) / 1e3
	most := uint64(0)
	for _, turns := range overtaken {
		if turns > most {
			most = turns
		}
	}
	say("overtaken", "us", float64(most)*turnUs)
}

// sayLongest is told the longest wait of each goroutine.
func sayLongest(waits []time.Duration) {
	var longest time.Duration
	for _, wait := range waits {
		if wait > longest {
			longest = wait
		}
	}
	say("-", "us", float64(longest.Nanoseconds())/1e3)
}

func rwLock(turns int) time.Duration {
	var lock sync.RWMutex
	var sum uint64
	took := together(func(index int) {
		var seen uint64
		for i := 0; i < turns; i++ {
			if (index+i)%turnsPerWrite == 0 {
				lock.Lock()
				sum++
				seen = sum
				lock.Unlock()
			} else {
				lock.RLock()
				seen = sum
				lock.RUnlock()
			}
		}
		runtime.KeepAlive(seen)
	})
	check(sum, writes(turns))
	return took
}

func rwLockWait() {
	var longest []time.Duration
	untilEnough(func(turns int) time.Duration {
		var lock sync.RWMutex
		var sum uint64
		longest = make([]time.Duration, tasks)
		took := together(func(index int) {
			var seen uint64
			var own time.Duration
			for i := 0; i < turns; i++ {
				start := time.Now()
				if (index+i)%turnsPerWrite == 0 {
					lock.Lock()
					sum++
					seen = sum
					lock.Unlock()
				} else {
					lock.RLock()
					seen = sum
					lock.RUnlock()
				}
				if took := time.Since(start); took > own {
					own = took
				}
			}
			runtime.KeepAlive(seen)
			longest[index] = own
		})
		check(sum, writes(turns))
		return took
	})
	sayLongest(longest)
}

// writes are those of all goroutines at a lock for reading and writing.
func writes(turns int) (all uint64) {
	for index := 0; index < tasks; index++ {
		all += uint64((index+turns+turnsPerWrite-1)/turnsPerWrite - (index+turnsPerWrite-1)/turnsPerWrite)
	}
	return all
}

// pingPong uses channels without places, as Go programs do. Each of the two begins with place.
func pingPong(place func()) {
	place()
	ping, pong := make(chan uint64), make(chan uint64)
	go func() {
		place()
		for message := range ping {
			pong <- message
		}
		close(pong)
	}()
	paced(1, func(turns int) time.Duration {
		start := time.Now()
		for i := uint64(0); i < uint64(turns); i++ {
			ping <- i
			check(<-pong, i)
		}
		return time.Since(start)
	})
	close(ping)
	<-pong
}

func stream(turns, consumers int) time.Duration {
	channel, sums := make(chan uint64, channelPlaces), make(chan uint64, consumers)
	start := time.Now()
	for i := 0; i < consumers; i++ {
		go func() {
			var sum uint64
			for message := range channel {
				sum += message
			}
			sums <- sum
		}()
	}
	var all sync.WaitGroup
	all.Add(producers)
	for i := 0; i < producers; i++ {
		go func() {
			produce(channel, turns)
			all.Done()
		}()
	}
	all.Wait()
	close(channel)
	var sum uint64
	for i := 0; i < consumers; i++ {
		sum += <-sums
	}
	took := time.Since(start)
	check(sum, producers*sumBelow(turns))
	return took
}

func produce(channel chan<- uint64, turns int) {
	for i := uint64(0); i < uint64(turns); i++ {
		channel <- i
	}
}

func selects(turns int) time.Duration {
	var channels [selectChannels]chan uint64
	start := time.Now()
	for i := range channels {
		channels[i] = make(chan uint64, selectPlaces)
		go produce(channels[i], turns)
	}
	a, b, c, d, e, f, g, h := channels[0], channels[1], channels[2], channels[3], channels[4], channels[5], channels[6], channels[7]
	var sum, message uint64
	for i := 0; i < selectChannels*turns; i++ {
		select {
		case message = <-a:
		case message = <-b:
		case message = <-c:
		case message = <-d:
		case message = <-e:
		case message = <-f:
		case message = <-g:
		case message = <-h:
		}
		sum += message
	}
	took := time.Since(start)
	check(sum, selectChannels*sumBelow(turns))
	return took
}

func oneshot(turns int) time.Duration {
	start := time.Now()
	for i := uint64(0); i < uint64(turns); i++ {
		channel := make(chan uint64, 1)
		channel <- i
		check(<-channel, i)
	}
	return time.Since(start)
}

func sumBelow(end int) uint64 { return uint64(end) * uint64(end-1) / 2 }

func check(found, expected uint64) {
	if found != expected {
		panic(fmt.Sprint("found ", found, " where ", expected, " was expected"))
	}
}

func sayLatencies(wave string, late []int64, names ...string) {
	shares := map[string]float64{"p50": 0.5, "p99": 0.99, "p999": 0.999}
	sort.Slice(late, func(i, j int) bool { return late[i] < late[j] })
	for _, name := range names {
		rank := int(shares[name]*float64(len(late)) + 0.999999)
		if rank < 1 {
			rank = 1
		}
		say(wave+name, "us", float64(late[rank-1])/1e3)
	}
}

func sayPeak() { say("peak", "MB", float64(statusBytes("VmHWM"))/1e6) }

func cpuTime() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// statusBytes reads a field of /proc/self/status as in `VmRSS:  1234 kB`.
func statusBytes(name string) int64 {
	file, err := os.Open("/proc/self/status")
	if err != nil {
		panic(err)
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if line := lines.Text(); strings.HasPrefix(line, name+":") {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(line[len(name)+1:]), " kB"), 10, 64)
			if err != nil {
				panic(err)
			}
			return kib << 10
		}
	}
	panic("/proc/self/status has no " + name)
}

// listen says where it listens, as every server does.
func listen() net.Listener {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	fmt.Println(listener.Addr())
	return listener
}

// serve echoes for ever; Go's connections do not delay small messages unless they are told to.
func serve(before func(request []byte)) {
	listener := listen()
	for {
		stream, err := listener.Accept()
		if err != nil {
			panic(err)
		}
		go echo(stream, before)
	}
}

func echo(stream net.Conn, before func(request []byte)) {
	defer stream.Close()
	buffer := make([]byte, bufferBytes)
	for {
		got, err := stream.Read(buffer)
		if err != nil {
			return
		}
		before(buffer[:got])
		if _, err := stream.Write(buffer[:got]); err != nil {
			return
		}
	}
}

func serveHTTP() {
	answer := func(writer http.ResponseWriter, _ *http.Request) { io.WriteString(writer, hello) }
	panic(http.Serve(listen(), http.HandlerFunc(answer)))
}

// burnIfHog finds how many steps take as long as a hog does: a goroutine may change threads meanwhile, so a thread's clock cannot tell it then.
func burnIfHog() func(request []byte) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const tries, steps = 5, 2_000_000
	least := time.Hour
	for i := 0; i < tries; i++ {
		before := threadTime()
		compute(steps)
		if took := threadTime() - before; took < least {
			least = took
		}
	}
	perHog := int(float64(steps) * float64(hogSpan) / float64(least))
	return func(request []byte) {
		if request[0] == hog {
			compute(perHog)
		}
	}
}

var computed uint64

func compute(steps int) {
	value := uint64(steps)
	for i := 0; i < steps; i++ {
		value = value*6364136223846793005 + 1442695040888963407
	}
	atomic.StoreUint64(&computed, value)
}

func threadTime() time.Duration {
	const threadClock = 3
	var now syscall.Timespec
	syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, threadClock, uintptr(unsafe.Pointer(&now)), 0)
	return time.Duration(now.Nano())
}

func fileRead() {
	file := numbered()
	late := make([][]int64, tasks)
	var cpu time.Duration
	took := untilEnough(func(turns int) time.Duration {
		cpu = cpuTime()
		took := together(func(index int) {
			own, block := make([]int64, turns), make([]byte, blockBytes)
			for turn := range own {
				hash := (uint64(index)<<32 | uint64(turn) + 1) * 6364136223846793005
				offset := int64(hash>>40) % blocks * blockBytes
				start := time.Now()
				got, err := file.ReadAt(block, offset)
				own[turn] = int64(time.Since(start))
				if err != nil {
					panic(err)
				}
				check(uint64(got), blockBytes)
				check(binary.LittleEndian.Uint64(block)*blockBytes, uint64(offset))
			}
			late[index] = own
		})
		cpu = cpuTime() - cpu
		return took
	})
	var all []int64
	for _, own := range late {
		all = append(all, own...)
	}
	sort.Slice(all, func(i, j int) bool { return all[i] < all[j] })
	say("-", "us_cpu_per_request", cpu.Seconds()*1e6/float64(len(all)))
	say("-", "requests_per_s", float64(len(all))/took.Seconds())
	for _, quantile := range []struct {
		unit  string
		share float64
	}{{"p50_us", 0.5}, {"p99_us", 0.99}, {"p999_us", 0.999}} {
		rank := int(math.Ceil(quantile.share * float64(len(all))))
		say("-", quantile.unit, float64(all[rank-1])/1e3)
	}
}

// numbered makes a file in which every block begins with its number; it goes with the process.
func numbered() *os.File {
	file, err := os.CreateTemp("", "rivals-blocks-")
	if err != nil {
		panic(err)
	}
	os.Remove(file.Name())
	block := make([]byte, blockBytes)
	for number := uint64(0); number < blocks; number++ {
		binary.LittleEndian.PutUint64(block, number)
		if _, err := file.Write(block); err != nil {
			panic(err)
		}
	}
	return file
}
