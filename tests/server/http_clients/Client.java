import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.file.Files;
import java.nio.file.Path;

/** The JDK's client as it is by default: it offers HTTP/2 with every request in the clear. */
class Client {
    public static void main(String[] arguments) throws Exception {
        HttpClient client = HttpClient.newHttpClient();
        for (int i = 1; i < arguments.length; i++) {
            HttpRequest request = HttpRequest.newBuilder(URI.create(arguments[0]))
                .POST(HttpRequest.BodyPublishers.ofFile(Path.of(arguments[i]))).build();
            HttpResponse<String> answer = client.send(request, HttpResponse.BodyHandlers.ofString());
            System.out.println(answer.statusCode() + " " + answer.body());
        }
    }
}
