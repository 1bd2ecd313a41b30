import com.google.gson.GsonBuilder;
import com.google.protobuf.Any;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.protobuf.util.Durations;
import com.google.rpc.BadRequest;
import com.google.rpc.ErrorInfo;
import com.google.rpc.RetryInfo;
import comity.v1.RequestServiceGrpc;
import comity.v1.RequestServiceGrpc.RequestServiceBlockingV2Stub;
import comity.v1.Requests.CancelRequestRequest;
import comity.v1.Requests.ListRequestsRequest;
import comity.v1.Requests.SubmitRequestRequest;
import comity.v1.Types.Delivery;
import comity.v1.Types.GpuDemand;
import comity.v1.Types.PageRequest;
import comity.v1.Types.Request;
import comity.v1.Types.RequestSpec;
import comity.v1.Types.Share;
import comity.v1.Watch.WatchRequest;
import comity.v1.WatchServiceGrpc;
import comity.v1.WatchServiceGrpc.WatchServiceBlockingV2Stub;
import io.grpc.ChannelCredentials;
import io.grpc.Grpc;
import io.grpc.ManagedChannel;
import io.grpc.StatusException;
import io.grpc.TlsChannelCredentials;
import io.grpc.protobuf.StatusProto;
import java.io.IOException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;

/**
 * Calls a Comity broker through grpc-java: submit, list by pages, watch and resume, and a refused call.
 *
 * <p>Arguments: BROKER IDENTITY [RUN]. BROKER is HOST:PORT. IDENTITY is a directory with cert.pem, key.pem and ca.pem.
 * RUN makes idempotency keys unique; without it, the program only lists. Prints one JSON object.
 */
public final class Client {
  private static final String TENANT = "poly-ml";
  private static final long TIMEOUT_S = 30;

  // docs: connect
  static ManagedChannel connect(String broker, Path identity) throws IOException {
    ChannelCredentials credentials =
        TlsChannelCredentials.newBuilder()
            .keyManager(identity.resolve("cert.pem").toFile(), identity.resolve("key.pem").toFile())
            .trustManager(identity.resolve("ca.pem").toFile())
            .build();
    return Grpc.newChannelBuilder(broker, credentials).build();
  }
  // docs: end

  static RequestSpec demand() {
    return RequestSpec.newBuilder()
        .setTenant(TENANT)
        .setOrigin("polytech-campus")
        .setGpus(
            GpuDemand.newBuilder()
                .setClass_("frontier")
                .setShare(Share.newBuilder().setWhole(Share.Whole.getDefaultInstance()))
                .setCount(1)
                .setCpuMilliPerGpu(1000)
                .setMemoryMibPerGpu(1024))
        .setDurationMs(3_600_000)
        .setDelivery(Delivery.DELIVERY_NAMESPACE)
        .build();
  }

  /** The same key returns the same request, so a call may be repeated. */
  static String submit(RequestServiceBlockingV2Stub requests, String key) throws StatusException {
    SubmitRequestRequest message =
        SubmitRequestRequest.newBuilder().setSpec(demand()).setIdempotencyKey(key).setQueueAnyway(true).build();
    return within(requests).submitRequest(message).getRequest().getId();
  }

  record Listing(List<List<String>> pages, long revision) {}

  /** The ids on each page, and the revision of the last page. */
  static Listing list(RequestServiceBlockingV2Stub requests, int size) throws StatusException {
    var pages = new ArrayList<List<String>>();
    var page = PageRequest.newBuilder().setSize(size);
    while (true) {
      var reply = within(requests).listRequests(ListRequestsRequest.newBuilder().setTenant(TENANT).setPage(page).build());
      pages.add(reply.getRequestsList().stream().map(Request::getId).toList());
      page.setToken(reply.getPage().getNextToken());
      if (page.getToken().isEmpty()) {
        return new Listing(pages, reply.getPage().getRevision());
      }
    }
  }

  record Watched(List<String> seen, long revision) {}

  // docs: watch
  /** The next {@code count} changes of requests after {@code revision}, and the revision to resume from. */
  static Watched watch(WatchServiceBlockingV2Stub watcher, long revision, int count)
      throws StatusException, InterruptedException {
    var seen = new ArrayList<String>();
    var stream =
        watcher
            .withDeadlineAfter(TIMEOUT_S, TimeUnit.SECONDS)
            .watch(WatchRequest.newBuilder().setFromRevision(revision).build());
    while (seen.size() < count) {
      var event = stream.read();
      revision = event.getRevision();
      if (event.hasRequest()) {
        seen.add(event.getRequest().getId() + " " + event.getRequest().getState());
      }
    }
    stream.cancel("seen enough", null);
    return new Watched(seen, revision);
  }
  // docs: end

  record Refusal(int code, String reason, List<String> fields, Long retryAfterMs) {}

  // docs: errors
  static Refusal describe(StatusException error) throws InvalidProtocolBufferException {
    String reason = "";
    List<String> fields = List.of();
    Long retryAfterMs = null;
    for (Any detail : StatusProto.fromThrowable(error).getDetailsList()) {
      if (detail.is(ErrorInfo.class)) {
        reason = detail.unpack(ErrorInfo.class).getReason();
      } else if (detail.is(BadRequest.class)) {
        var violations = detail.unpack(BadRequest.class).getFieldViolationsList();
        fields = violations.stream().map(BadRequest.FieldViolation::getField).toList();
      } else if (detail.is(RetryInfo.class)) {
        retryAfterMs = Durations.toMillis(detail.unpack(RetryInfo.class).getRetryDelay());
      }
    }
    return new Refusal(error.getStatus().getCode().value(), reason, fields, retryAfterMs);
  }
  // docs: end

  record Report(
      List<String> submitted,
      String repeated,
      List<List<String>> pages,
      List<String> watched,
      List<String> resumed,
      Refusal refused) {}

  record ListReport(Refusal refused) {}

  private static RequestServiceBlockingV2Stub within(RequestServiceBlockingV2Stub requests) {
    return requests.withDeadlineAfter(TIMEOUT_S, TimeUnit.SECONDS);
  }

  public static void main(String[] args) throws Exception {
    String broker = args[0];
    Path identity = Path.of(args[1]);
    Object report = args.length > 2 ? wholeTour(broker, identity, args[2]) : onlyList(broker, identity);
    System.out.println(new GsonBuilder().serializeNulls().create().toJson(report));
  }

  private static ListReport onlyList(String broker, Path identity) throws Exception {
    ManagedChannel channel = connect(broker, identity);
    try {
      list(RequestServiceGrpc.newBlockingV2Stub(channel), 500);
      return new ListReport(null);
    } catch (StatusException error) {
      return new ListReport(describe(error));
    } finally {
      close(channel);
    }
  }

  private static void close(ManagedChannel channel) throws InterruptedException {
    channel.shutdownNow().awaitTermination(TIMEOUT_S, TimeUnit.SECONDS);
  }

  private static Report wholeTour(String broker, Path identity, String run) throws Exception {
    var submitted = new ArrayList<String>();
    String repeated;
    List<List<String>> pages;
    Watched watched;
    ManagedChannel channel = connect(broker, identity);
    try {
      var requests = RequestServiceGrpc.newBlockingV2Stub(channel);
      long revision = list(requests, 500).revision();
      for (int number = 1; number <= 3; number++) {
        submitted.add(submit(requests, run + "-" + number));
      }
      repeated = submit(requests, run + "-1");
      pages = list(requests, 1).pages();
      watched = watch(WatchServiceGrpc.newBlockingV2Stub(channel), revision, 2);
    } finally {
      close(channel);
    }
    channel = connect(broker, identity);
    try {
      var requests = RequestServiceGrpc.newBlockingV2Stub(channel);
      for (String id : submitted) {
        var message = CancelRequestRequest.newBuilder().setRequest(id).setIdempotencyKey(run + "-cancel-" + id).build();
        within(requests).cancelRequest(message);
      }
      Watched resumed = watch(WatchServiceGrpc.newBlockingV2Stub(channel), watched.revision(), 4);
      Refusal refused = null;
      try {
        within(requests).submitRequest(SubmitRequestRequest.getDefaultInstance());
      } catch (StatusException error) {
        refused = describe(error);
      }
      return new Report(submitted, repeated, pages, watched.seen(), resumed.seen(), refused);
    } finally {
      close(channel);
    }
  }
}
